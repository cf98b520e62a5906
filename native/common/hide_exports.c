/* Hides exports of a proxy that the real library does not have.
 *
 * The proxy exports all functions of the newest headers; an older driver has fewer. Programs ask dlsym() which version of
 * a function exists (numba uses NAME_v2 if it exists, else NAME), so an extra export leads them to a function that
 * always fails. Its symbol is therefore removed from the proxy's table in memory: the loader skips symbols without a
 * value. A table in executable memory, which old linkers produced, is not changed.
 */
#include "hide_exports.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

struct table {
    ElfW(Addr) base;
    ElfW(Sym) *symbols;
    const char *names;
    const uint32_t *hash; /* its second word is the number of symbols */
    bool plain;           /* may be made writable: a part of a segment without code */
};

static void read_dynamic(const struct link_map *map, struct table *table) {
    table->base = map->l_addr;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        ElfW(Addr) at = entry->d_un.d_ptr < map->l_addr ? entry->d_un.d_ptr + map->l_addr : entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB)
            table->symbols = (ElfW(Sym) *)at;
        else if (entry->d_tag == DT_STRTAB)
            table->names = (const char *)at;
        else if (entry->d_tag == DT_HASH)
            table->hash = (const uint32_t *)at;
    }
}

static int look_at_segments(struct dl_phdr_info *object, size_t size, void *argument) {
    (void)size;
    struct table *table = argument;
    if (object->dlpi_addr != table->base)
        return 0;
    ElfW(Addr) at = (ElfW(Addr))table->symbols - table->base;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && at >= segment->p_vaddr && at < segment->p_vaddr + segment->p_memsz)
            table->plain = segment->p_flags == PF_R;
    }
    return 1;
}

static bool find_table(const void *inside, struct table *table) {
    Dl_info about;
    struct link_map *map = NULL;
    if (dladdr1(inside, &about, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL)
        return false;
    read_dynamic(map, table);
    if (table->symbols == NULL || table->names == NULL || table->hash == NULL)
        return false;
    dl_iterate_phdr(look_at_segments, table);
    return table->plain;
}

void gp_hide_exports(const void *inside, void *real) {
    struct table table = {0};
    if (!find_table(inside, &table))
        return;
    uint32_t count = table.hash[1];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)table.symbols & ~(page - 1);
    uintptr_t to = ((uintptr_t)(table.symbols + count) + page - 1) & ~(page - 1);
    if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE) != 0)
        return;
    for (uint32_t i = 1; i < count; i++)
        if (table.symbols[i].st_shndx != SHN_UNDEF && dlsym(real, table.names + table.symbols[i].st_name) == NULL)
            table.symbols[i].st_value = 0;
    mprotect((void *)from, to - from, PROT_READ);
}
