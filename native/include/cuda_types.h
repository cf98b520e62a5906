/* The driver's ABI, as far as hooks and the fake driver need it: handles, numbers, structures, prototypes.
 *
 * Own declarations, so that nothing of NVIDIA's is needed to build. Prototypes of every function whose types are
 * declared here come out of generated/cuda_api.txt at build time: declare a type and its functions appear.
 * With GPUPOOL_CHECK_HEADERS the real header takes the place of all this: tests compile every hook against it.
 */
#ifndef GPUPOOL_CUDA_TYPES_H
#define GPUPOOL_CUDA_TYPES_H

#ifdef GPUPOOL_CHECK_HEADERS
#include "cuda_check.h"
#else

#include <stddef.h>
#include <stdint.h>

#define CUDA_VERSION 13050 /* of the lists in generated/ */

#define GP_HANDLE(name) typedef struct gp_##name *name; /* a pointer whose inside is the driver's */
#define GP_OPAQUE(name) typedef struct gp_##name name;  /* a structure that is only passed on */
#define GP_NUMBER(name) typedef int name;               /* an enum whose members do not matter here */

#include "cuda_enums.h"

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef int CUdevice;
typedef unsigned long long CUtexObject;
typedef unsigned long long CUsurfObject;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef cuuint64_t CUgraphConditionalHandle;
typedef CUlaunchAttributeID CUstreamAttrID;
typedef CUlaunchAttributeID CUkernelNodeAttrID;

GP_HANDLE(CUcontext)
GP_HANDLE(CUgreenCtx)
GP_HANDLE(CUmodule)
GP_HANDLE(CUlibrary)
GP_HANDLE(CUkernel)
GP_HANDLE(CUfunction)
GP_HANDLE(CUarray)
GP_HANDLE(CUmipmappedArray)
GP_HANDLE(CUtexref)
GP_HANDLE(CUsurfref)
GP_HANDLE(CUstream)
GP_HANDLE(CUevent)
GP_HANDLE(CUgraph)
GP_HANDLE(CUgraphNode)
GP_HANDLE(CUgraphExec)
GP_HANDLE(CUgraphDeviceNode)
GP_HANDLE(CUmemoryPool)
GP_HANDLE(CUuserObject)
GP_HANDLE(CUexternalMemory)
GP_HANDLE(CUexternalSemaphore)
GP_HANDLE(CUgraphicsResource)
GP_HANDLE(CUlinkState)
GP_HANDLE(CUasyncCallbackHandle)
GP_HANDLE(CUdevResourceDesc)

GP_OPAQUE(CUDA_ARRAY_SPARSE_PROPERTIES)
GP_OPAQUE(CUDA_BATCH_MEM_OP_NODE_PARAMS)
GP_OPAQUE(CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC)
GP_OPAQUE(CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS)
GP_OPAQUE(CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS)
GP_OPAQUE(CUDA_EXT_SEM_SIGNAL_NODE_PARAMS)
GP_OPAQUE(CUDA_EXT_SEM_WAIT_NODE_PARAMS)
GP_OPAQUE(CUDA_MEMCPY3D_BATCH_OP)
GP_OPAQUE(CUDA_RESOURCE_DESC)
GP_OPAQUE(CUDA_RESOURCE_VIEW_DESC)
GP_OPAQUE(CUDA_TEXTURE_DESC)
GP_OPAQUE(CUctxCigParam)
GP_OPAQUE(CUdevResource)
GP_OPAQUE(CUmemDecompressParams)
GP_OPAQUE(CUmemcpyAttributes)
GP_OPAQUE(CUmulticastObjectProp)
GP_OPAQUE(CUstreamBatchMemOpParams)
GP_OPAQUE(CUtensorMap)

GP_NUMBER(CUaddress_mode)
GP_NUMBER(CUcoredumpSettings)
GP_NUMBER(CUdevResourceType)
GP_NUMBER(CUdevice_P2PAttribute)
GP_NUMBER(CUfilter_mode)
GP_NUMBER(CUflushGPUDirectRDMAWritesScope)
GP_NUMBER(CUflushGPUDirectRDMAWritesTarget)
GP_NUMBER(CUfunc_cache)
GP_NUMBER(CUfunctionLoadingState)
GP_NUMBER(CUfunction_attribute)
GP_NUMBER(CUgraphRecaptureStatus)
GP_NUMBER(CUjitInputType)
GP_NUMBER(CUjit_option)
GP_NUMBER(CUlibraryOption)
GP_NUMBER(CUlimit)
GP_NUMBER(CUmemRangeHandleType)
GP_NUMBER(CUmem_advise)
GP_NUMBER(CUmem_range_attribute)
GP_NUMBER(CUmoduleLoadingMode)
GP_NUMBER(CUmulticastGranularity_flags)
GP_NUMBER(CUprocessState)
GP_NUMBER(CUsharedconfig)

typedef void (*CUhostFn)(void *data);
typedef void (*CUstreamCallback)(CUstream stream, CUresult status, void *data);
typedef size_t (*CUoccupancyB2DSize)(int block_size);

typedef struct { char bytes[16]; } CUuuid;
typedef struct { char reserved[CU_IPC_HANDLE_SIZE]; } CUipcMemHandle;
typedef struct { char reserved[CU_IPC_HANDLE_SIZE]; } CUipcEventHandle;
typedef struct { unsigned char reserved[64]; } CUmemPoolPtrExportData;

typedef struct {
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], sharedMemPerBlock, totalConstantMemory;
    int SIMDWidth, memPitch, regsPerBlock, clockRate, textureAlign;
} CUdevprop;

/* -- contexts -- */

typedef struct {
    CUexecAffinityType type;
    union { struct { unsigned int val; } smCount; } param;
} CUexecAffinityParam;
typedef struct {
    CUexecAffinityParam *execAffinityParams;
    int numExecAffinityParams;
    CUctxCigParam *cigParams;
} CUctxCreateParams;

/* -- memory -- */

typedef struct {
    CUmemLocationType type;
    int id;
} CUmemLocation;
typedef struct {
    CUmemLocation location;
    CUmemAccess_flags flags;
} CUmemAccessDesc;
typedef struct {
    CUmemAllocationType type;
    CUmemAllocationHandleType requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType, gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;
typedef struct {
    CUmemAllocationType allocType;
    CUmemAllocationHandleType handleTypes;
    CUmemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char gpuDirectRDMACapable;
    unsigned char reserved[53];
} CUmemPoolProps;
typedef struct {
    size_t Width, Height;
    CUarray_format Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR;
typedef struct {
    unsigned int Width, Height;
    CUarray_format Format;
    unsigned int NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;
typedef struct {
    size_t Width, Height, Depth;
    CUarray_format Format;
    unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;
typedef struct {
    unsigned int Width, Height, Depth;
    CUarray_format Format;
    unsigned int NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;
typedef struct {
    size_t size, alignment;
    unsigned int reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;
typedef struct {
    CUresourcetype resourceType;
    union {
        CUmipmappedArray mipmap;
        CUarray array;
    } resource;
    CUarraySparseSubresourceType subresourceType;
    union {
        struct { unsigned int level, layer, offsetX, offsetY, offsetZ, extentWidth, extentHeight, extentDepth; } sparseLevel;
        struct {
            unsigned int layer;
            unsigned long long offset, size;
        } miptail;
    } subresource;
    CUmemOperationType memOperationType;
    CUmemHandleType memHandleType;
    union { CUmemGenericAllocationHandle memHandle; } memHandle;
    unsigned long long offset;
    unsigned int deviceBitMask, flags, reserved[2];
} CUarrayMapInfo;
typedef struct {
    CUexternalMemoryHandleType type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
        const void *nvSciBufObject;
    } handle;
    unsigned long long size;
    unsigned int flags, reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
typedef struct {
    unsigned long long offset, size;
    unsigned int flags, reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;
typedef struct {
    unsigned long long offset;
    CUDA_ARRAY3D_DESCRIPTOR arrayDesc;
    unsigned int numLevels, reserved[16];
} CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC;

/* -- copies: one shape, with sizes of the width of an address and of the first ABI's 32 bits -- */

#define GP_COPY2D_SIDE(side, size, pointer, constant)                                                                 \
    size side##XInBytes, side##Y;                                                                                     \
    CUmemorytype side##MemoryType;                                                                                    \
    constant void *side##Host;                                                                                        \
    pointer side##Device;                                                                                             \
    CUarray side##Array;                                                                                              \
    size side##Pitch;
#define GP_COPY3D_SIDE(side, size, pointer, constant, last)                                                           \
    size side##XInBytes, side##Y, side##Z, side##LOD;                                                                 \
    CUmemorytype side##MemoryType;                                                                                    \
    constant void *side##Host;                                                                                        \
    pointer side##Device;                                                                                             \
    CUarray side##Array;                                                                                              \
    last;                                                                                                             \
    size side##Pitch, side##Height;

typedef struct {
    GP_COPY2D_SIDE(src, size_t, CUdeviceptr, const)
    GP_COPY2D_SIDE(dst, size_t, CUdeviceptr, )
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;
typedef struct {
    GP_COPY2D_SIDE(src, unsigned int, CUdeviceptr_v1, const)
    GP_COPY2D_SIDE(dst, unsigned int, CUdeviceptr_v1, )
    unsigned int WidthInBytes, Height;
} CUDA_MEMCPY2D_v1;
typedef struct {
    GP_COPY3D_SIDE(src, size_t, CUdeviceptr, const, void *reserved0)
    GP_COPY3D_SIDE(dst, size_t, CUdeviceptr, , void *reserved1)
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;
typedef struct {
    GP_COPY3D_SIDE(src, unsigned int, CUdeviceptr_v1, const, void *reserved0)
    GP_COPY3D_SIDE(dst, unsigned int, CUdeviceptr_v1, , void *reserved1)
    unsigned int WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D_v1;
typedef struct {
    GP_COPY3D_SIDE(src, size_t, CUdeviceptr, const, CUcontext srcContext)
    GP_COPY3D_SIDE(dst, size_t, CUdeviceptr, , CUcontext dstContext)
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D_PEER;

/* -- launches -- */

typedef union {
    char pad[64];
    int cooperative;
    int priority;
    int programmaticStreamSerializationAllowed;
    struct { unsigned int x, y, z; } clusterDim;
    struct {
        CUevent event;
        int flags, triggerAtBlockStart;
    } programmaticEvent;
    struct {
        CUevent event;
        int flags;
    } launchCompletionEvent;
} CUlaunchAttributeValue;
typedef CUlaunchAttributeValue CUstreamAttrValue;
typedef CUlaunchAttributeValue CUkernelNodeAttrValue;
typedef struct {
    CUlaunchAttributeID id;
    char pad[8 - sizeof(CUlaunchAttributeID)];
    CUlaunchAttributeValue value;
} CUlaunchAttribute;
typedef struct {
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;
typedef struct {
    CUfunction function;
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    void **kernelParams;
} CUDA_LAUNCH_PARAMS;

/* -- graphs -- */

#define GP_KERNEL_NODE                                                                                                \
    CUfunction func;                                                                                                  \
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;                       \
    void **kernelParams, **extra;

typedef struct { GP_KERNEL_NODE } CUDA_KERNEL_NODE_PARAMS_v1;
typedef struct {
    GP_KERNEL_NODE
    CUkernel kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;
typedef CUDA_KERNEL_NODE_PARAMS CUDA_KERNEL_NODE_PARAMS_v3;
typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned int value, elementSize;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;
typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned int value, elementSize;
    size_t width, height;
    CUcontext ctx;
} CUDA_MEMSET_NODE_PARAMS_v2;
typedef struct {
    CUhostFn fn;
    void *userData;
} CUDA_HOST_NODE_PARAMS;
typedef struct {
    CUmemPoolProps poolProps;
    const CUmemAccessDesc *accessDescs;
    size_t accessDescCount, bytesize;
    CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;
typedef CUDA_MEM_ALLOC_NODE_PARAMS CUDA_MEM_ALLOC_NODE_PARAMS_v2;
typedef struct { CUdeviceptr dptr; } CUDA_MEM_FREE_NODE_PARAMS;
typedef struct {
    CUgraph graph;
    int ownership;
} CUDA_CHILD_GRAPH_NODE_PARAMS;
typedef struct {
    int flags, reserved;
    CUcontext copyCtx;
    CUDA_MEMCPY3D copyParams;
} CUDA_MEMCPY_NODE_PARAMS;
typedef struct {
    CUgraphConditionalHandle handle;
    int type;
    unsigned int size;
    CUgraph *phGraph_out;
    CUcontext ctx;
} CUDA_CONDITIONAL_NODE_PARAMS;
typedef struct {
    CUgraphNodeType type;
    int reserved0[3];
    union {
        long long reserved1[29];
        CUDA_KERNEL_NODE_PARAMS_v3 kernel;
        CUDA_MEMCPY_NODE_PARAMS memcpy;
        CUDA_MEMSET_NODE_PARAMS_v2 memset;
        CUDA_CHILD_GRAPH_NODE_PARAMS graph;
        CUDA_MEM_ALLOC_NODE_PARAMS_v2 alloc;
        CUDA_MEM_FREE_NODE_PARAMS free;
        CUDA_CONDITIONAL_NODE_PARAMS conditional;
    };
    long long reserved2;
} CUgraphNodeParams;
typedef struct {
    unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;
typedef struct {
    cuuint64_t flags;
    CUstream hUploadStream;
    CUgraphNode hErrNode_out;
    CUgraphInstantiateResult result_out;
} CUDA_GRAPH_INSTANTIATE_PARAMS;
typedef struct {
    CUgraphExecUpdateResult result;
    CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;
typedef CUresult (*CUgraphRecaptureCallback)(void *data, CUgraphNode node, const CUgraphNodeParams *original,
                                             const CUgraphNodeParams *recaptured, CUgraphRecaptureStatus status);

GP_OPAQUE(CUcheckpointCustomStorageInfo)
typedef struct {
    unsigned int timeoutMs, reserved0;
    cuuint64_t reserved1[7];
} CUcheckpointLockArgs;
typedef struct {
    CUcheckpointCustomStorageInfo **customStorageInfo_out;
    char reserved[56];
} CUcheckpointCheckpointArgs;
typedef struct {
    CUuuid oldUuid, newUuid;
} CUcheckpointGpuPair;
typedef struct {
    CUcheckpointGpuPair *gpuPairs;
    unsigned int gpuPairsCount, padding0;
    CUcheckpointCustomStorageInfo **customStorageInfo_out;
    char reserved[40];
} CUcheckpointRestoreArgs;
typedef struct {
    cuuint64_t reserved[8];
} CUcheckpointUnlockArgs;

#include "generated/cuda_prototypes.h"

#endif /* GPUPOOL_CHECK_HEADERS */
#endif
