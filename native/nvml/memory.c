/* A GPU has the memory of the slice: as much as the limit, used as the status page says. These are the numbers of
 * cuMemGetInfo, to the byte. BAR1, a window for the host and not what programs fill, is the card's. */
#include "ledger.h"
#include "view.h"

GP_HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    int gpu = result == NVML_SUCCESS ? gp_index_of(device) : -1;
    if (gpu < 0) return result;
    memory->total = gp_control((uint32_t)gpu)->memory_limit_bytes;
    memory->used = gp_used_bytes(gp_control((uint32_t)gpu), gp_status((uint32_t)gpu));
    memory->free = memory->total - memory->used;
    return result;
}

/* What the driver reserves of the card is nobody's slice. */
GP_HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    int gpu = result == NVML_SUCCESS ? gp_index_of(device) : -1;
    if (gpu < 0) return result;
    memory->total = gp_control((uint32_t)gpu)->memory_limit_bytes;
    memory->used = gp_used_bytes(gp_control((uint32_t)gpu), gp_status((uint32_t)gpu));
    memory->free = memory->total - memory->used;
    memory->reserved = 0;
    return result;
}
