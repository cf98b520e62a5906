#include "fake.h"
void fake_pools_after_sync(struct gpu *gpu) { (void)gpu; }
void fake_pools_close(struct gpu *gpu) { (void)gpu; }
void fake_pools_trim_unused(struct gpu *gpu) { (void)gpu; }
CUresult fake_pool_free(struct range *range, CUstream stream) { (void)range; (void)stream; return CUDA_ERROR_INVALID_VALUE; }
CUresult fake_graph_free(struct range *range, CUstream stream) { (void)range; (void)stream; return CUDA_ERROR_INVALID_VALUE; }
uint64_t fake_array_base(CUarray array, uint64_t *pitch, uint64_t *slice, uint64_t *bytes) { (void)array; (void)pitch; (void)slice; (void)bytes; return 0; }
CUresult fake_unsafe_call(void) { return CUDA_SUCCESS; }
CUresult fake_capturing(CUstream stream, bool *captured) { (void)stream; *captured = false; return CUDA_SUCCESS; }
CUresult fake_capture_node(CUstream stream, CUgraphNodeType type, const void *parameters) { (void)stream; (void)type; (void)parameters; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult fake_capture_record(CUevent event, CUstream stream) { (void)stream; (void)event; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult fake_capture_wait(CUstream stream, CUevent event) { (void)stream; (void)event; return CUDA_ERROR_NOT_SUPPORTED; }
void fake_capture_forget(CUevent event) { (void)event; }
void fake_capture_break(struct capture *capture) { (void)capture; }
