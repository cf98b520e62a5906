/* For tests only: NVIDIA's header in the place of cuda_types.h, with all versions of all functions declared. */
#ifndef GPUPOOL_CUDA_CHECK_H
#define GPUPOOL_CUDA_CHECK_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

/* What handles point to is defined by the fake driver under our own names; there they have these. */
#define gp_CUcontext CUctx_st
#define gp_CUgreenCtx CUgreenCtx_st
#define gp_CUmodule CUmod_st
#define gp_CUlibrary CUlib_st
#define gp_CUkernel CUkern_st
#define gp_CUfunction CUfunc_st
#define gp_CUarray CUarray_st
#define gp_CUmipmappedArray CUmipmappedArray_st
#define gp_CUtexref CUtexref_st
#define gp_CUsurfref CUsurfref_st
#define gp_CUstream CUstream_st
#define gp_CUevent CUevent_st
#define gp_CUgraph CUgraph_st
#define gp_CUgraphNode CUgraphNode_st
#define gp_CUgraphExec CUgraphExec_st
#define gp_CUgraphDeviceNode CUgraphDeviceUpdatableNode_st
#define gp_CUmemoryPool CUmemPoolHandle_st
#define gp_CUuserObject CUuserObject_st
#define gp_CUexternalMemory CUextMemory_st
#define gp_CUexternalSemaphore CUextSemaphore_st
#define gp_CUgraphicsResource CUgraphicsResource_st
#define gp_CUlinkState CUlinkState_st
#define gp_CUasyncCallbackHandle CUasyncCallbackEntry_st
#define gp_CUdevResourceDesc CUdevResourceDesc_st

#endif
