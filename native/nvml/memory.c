/* Hooks that show the memory of the slice: the total is the limit, the used part comes from the status page. The
 * numbers equal those of cuMemGetInfo, to the byte. BAR1, a window for the host, is not limited and stays the card's. */
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

/* Memory that the driver reserves belongs to no slice. */
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
