/* Undoes interposition between a real library and the proxy in front of it.
 *
 * The proxy has the real library's names and is loaded before it. The loader therefore binds calls that the real library
 * makes to its own exports to the proxy, unless it was linked with -Bsymbolic (libcuda is, libnvidia-ml is not). Inside
 * the real library these calls would see the lease's GPUs in place of the machine's.
 *
 * RTLD_DEEPBIND would prevent that, but for every name: where an allocator is preloaded, the library's malloc and free
 * would no longer be the same as those of the C library that it calls. So only the words that hold addresses of the
 * library's own exports with this project's prefixes are written anew, after it was loaded and before anything is called.
 */
#include "bind_to_itself.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define IS_ADDRESS(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#define IS_ADDRESS_AND_ADDEND(type) ((type) == R_X86_64_64)
#elif defined(__aarch64__)
#define IS_ADDRESS(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#define IS_ADDRESS_AND_ADDEND(type) ((type) == R_AARCH64_ABS64)
#endif

struct object {
    ElfW(Addr) base;
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *tables[2];
    size_t sizes[2]; /* in bytes */
};

static struct object read_object(const struct link_map *map) {
    struct object object = {.base = map->l_addr};
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        ElfW(Addr) at = entry->d_un.d_ptr < map->l_addr ? entry->d_un.d_ptr + map->l_addr : entry->d_un.d_ptr;
        switch (entry->d_tag) {
        case DT_SYMTAB: object.symbols = (const ElfW(Sym) *)at; break;
        case DT_STRTAB: object.names = (const char *)at; break;
        case DT_RELA: object.tables[0] = (const ElfW(Rela) *)at; break;
        case DT_RELASZ: object.sizes[0] = entry->d_un.d_val; break;
        case DT_JMPREL: object.tables[1] = (const ElfW(Rela) *)at; break;
        case DT_PLTRELSZ: object.sizes[1] = entry->d_un.d_val; break;
        default: break;
        }
    }
    return object;
}

/* Returns the segment of an address, and whether it is read-only after loading (RELRO). */
struct place {
    const struct object *object;
    ElfW(Addr) at;
    bool found, read_only;
};

static int find_place(struct dl_phdr_info *info, size_t size, void *argument) {
    (void)size;
    struct place *place = argument;
    if (info->dlpi_addr != place->object->base)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        ElfW(Addr) at = place->at - info->dlpi_addr;
        if (at < part->p_vaddr || at >= part->p_vaddr + part->p_memsz)
            continue;
        place->found |= part->p_type == PT_LOAD;
        place->read_only |= part->p_type == PT_GNU_RELRO || (part->p_type == PT_LOAD && (part->p_flags & PF_W) == 0);
    }
    return 1;
}

static void write_word(const struct object *object, ElfW(Addr) at, ElfW(Addr) value) {
    struct place place = {.object = object, .at = at};
    dl_iterate_phdr(find_place, &place);
    uintptr_t page_size = (uintptr_t)sysconf(_SC_PAGESIZE), page = at & ~(page_size - 1);
    if (!place.found || (place.read_only && mprotect((void *)page, page_size, PROT_READ | PROT_WRITE) != 0))
        return;
    *(ElfW(Addr) *)at = value;
    if (place.read_only)
        mprotect((void *)page, page_size, PROT_READ);
}

static bool is_own_export(const struct object *object, const ElfW(Sym) *symbol, const char *prefix) {
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0 && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC &&
           strncmp(object->names + symbol->st_name, prefix, strlen(prefix)) == 0;
}

void gp_bind_to_itself(void *library, const char *prefix) {
    struct link_map *map = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == NULL)
        return;
    struct object object = read_object(map);
    if (object.symbols == NULL || object.names == NULL)
        return;
    for (int table = 0; table < 2; table++) {
        const ElfW(Rela) *rela = object.tables[table];
        for (size_t i = 0; rela != NULL && i < object.sizes[table] / sizeof *rela; i++) {
            const ElfW(Sym) *symbol = &object.symbols[ELF64_R_SYM(rela[i].r_info)];
            uint32_t type = ELF64_R_TYPE(rela[i].r_info);
            if ((!IS_ADDRESS(type) && !IS_ADDRESS_AND_ADDEND(type)) || !is_own_export(&object, symbol, prefix))
                continue;
            ElfW(Addr) at = object.base + rela[i].r_offset, value = object.base + symbol->st_value;
            value += IS_ADDRESS_AND_ADDEND(type) ? (ElfW(Addr))rela[i].r_addend : 0;
            if (*(ElfW(Addr) *)at != value)
                write_word(&object, at, value);
        }
    }
}
