/* Attributes of pointers. */
#include <string.h>

#include "fake.h"

static void put(void *out, const void *value, size_t bytes) { memcpy(out, value, bytes); }
#define PUT(type, value) put(out, &(type){value}, sizeof(type))

/* Returns one attribute of an address; an unknown address has none. */
static CUresult get(void *out, int attribute, const struct range *range, CUdeviceptr address) {
    bool on_card = range->gpu != NULL;
    switch (attribute) {
    case 1: PUT(CUcontext, range->context); break;
    case 2: PUT(CUmemorytype, on_card ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST); break;
    case 3: PUT(CUdeviceptr, address); break;
    case 4:
        if (on_card && range->kind != RANGE_MANAGED) return CUDA_ERROR_INVALID_VALUE;
        PUT(CUdeviceptr, address);
        break;
    case 6: PUT(int, 0); break;
    case 7: PUT(unsigned long long, range->id); break;
    case 8: PUT(int, range->kind == RANGE_MANAGED); break;
    case 9: PUT(int, on_card ? range->gpu->ordinal : 0); break;
    case 10: PUT(int, 0); break;
    case 11: PUT(CUdeviceptr, range->base); break;
    case 12: PUT(size_t, range->bytes); break;
    case 13: PUT(int, 1); break;
    case 14: PUT(unsigned long long, 0); break;
    case 15: PUT(int, 0); break;
    case 16: PUT(int, CU_MEM_ACCESS_FLAGS_PROT_READWRITE); break;
    case 17: PUT(CUmemoryPool, range->kind == RANGE_POOL ? (CUmemoryPool)range->owner : NULL); break;
    case 18: PUT(size_t, range->bytes); break;
    case 19: PUT(CUdeviceptr, range->base); break;
    case 20: PUT(unsigned long long, range->id); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address) {
    ENTER;
    struct range *range = fake_range_find(address);
    if (out == NULL || range == NULL) return CUDA_ERROR_INVALID_VALUE;
    return get(out, (int)attribute, range, address);
}

static size_t attribute_bytes(int attribute) {
    switch (attribute) {
    case 2:
    case 6:
    case 8:
    case 9:
    case 10:
    case 13:
    case 15:
    case 16: return 4;
    default: return 8;
    }
}

/* For an unknown address every attribute is zero, and the device is invalid. */
API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **out,
                                    CUdeviceptr address) {
    ENTER;
    struct range *range = fake_range_find(address);
    if (attributes == NULL || out == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++) {
        int attribute = (int)attributes[i];
        if (range != NULL && get(out[i], attribute, range, address) == CUDA_SUCCESS) continue;
        memset(out[i], 0, attribute_bytes(attribute));
        if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) put(out[i], &(int){CU_DEVICE_INVALID}, sizeof(int));
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    ENTER;
    bool known = value != NULL && fake_range_find(address) != NULL;
    return known && (int)attribute == 6 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
