#include "fake.h"
CUresult fake_graph_free(struct range *range, CUstream stream) { (void)range; (void)stream; return CUDA_ERROR_INVALID_VALUE; }
CUresult fake_unsafe_call(void) { return CUDA_SUCCESS; }
CUresult fake_capturing(CUstream stream, bool *captured) { (void)stream; *captured = false; return CUDA_SUCCESS; }
CUresult fake_capture_node(CUstream stream, CUgraphNodeType type, const void *parameters) { (void)stream; (void)type; (void)parameters; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult fake_capture_record(CUevent event, CUstream stream) { (void)stream; (void)event; return CUDA_ERROR_NOT_SUPPORTED; }
CUresult fake_capture_wait(CUstream stream, CUevent event) { (void)stream; (void)event; return CUDA_ERROR_NOT_SUPPORTED; }
void fake_capture_forget(CUevent event) { (void)event; }
void fake_capture_break(struct capture *capture) { (void)capture; }
CUresult fake_capture_allocation(CUstream stream, uint64_t bytes, CUdeviceptr *address) { (void)stream; (void)bytes; (void)address; return CUDA_ERROR_NOT_SUPPORTED; }
