#include "device/cuda/peer_access.h"

#include "device/cuda/check.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstring>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <vector>

namespace fvlm::device {
namespace {

using BatchMemOp = CUresult (*)(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags);

BatchMemOp find_batch_mem_op() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const auto result =
      cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, 12000, cudaEnableDefault, &found);
  check_cuda(result, "the driver has no memory operations of streams");
  if (found != cudaDriverEntryPointSuccess || !function)
    throw Error(ErrorKind::device, "the driver has no memory operations of streams");
  return reinterpret_cast<BatchMemOp>(function);
}

class CudaPeerAccess : public PeerAccess {
 public:
  // The handle is that of LibTorch's whole segment, which has the memory at an offset.
  std::string export_memory(void* data) override {
    const auto [offset, handle] = c10::cuda::CUDACachingAllocator::shareIpcHandle(data);
    const auto place = static_cast<int64_t>(offset);
    return std::string(reinterpret_cast<const char*>(&place), sizeof place) + handle;
  }

  std::shared_ptr<std::byte> open_memory(const std::string& exported) override {
    int64_t place = 0;
    std::memcpy(&place, exported.data(), sizeof place);
    auto segment = c10::cuda::CUDACachingAllocator::getIpcDevPtr(exported.substr(sizeof place));
    auto* data = static_cast<std::byte*>(segment.get()) + place;
    return {std::move(segment), data};
  }

  std::shared_ptr<void> map_host(void* data, size_t bytes) override {
    check_cuda(cudaHostRegister(data, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable),
               "cannot map memory of the host");
    std::shared_ptr<void> mapped(data, [](void* memory) {
      if (cudaHostUnregister(memory) != cudaSuccess) (void)cudaGetLastError();
    });
    void* on_device = nullptr;
    check_cuda(cudaHostGetDevicePointer(&on_device, data, 0), "cannot map memory of the host");
    if (on_device != data) throw Error(ErrorKind::device, "the device has other addresses for memory of the host");
    return mapped;
  }

  void copy(void* stream, void* to, const void* from, size_t bytes) override {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream)),
               "cannot copy between devices");
  }

  void signal_and_wait(void* stream, std::span<uint32_t* const> signals, std::span<uint32_t* const> awaited) override {
    std::vector<CUstreamBatchMemOpParams> operations;
    for (uint32_t* signal : signals) operations.push_back(write(signal, 1));
    for (uint32_t* signal : awaited) {
      CUstreamBatchMemOpParams& wait = operations.emplace_back();
      wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
      wait.waitValue.address = reinterpret_cast<CUdeviceptr>(signal);
      wait.waitValue.value = 1;
      wait.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    }
    for (uint32_t* signal : awaited) operations.push_back(write(signal, 0));
    const CUresult result =
        batch_mem_op_(static_cast<CUstream>(stream), static_cast<unsigned>(operations.size()), operations.data(), 0);
    if (result != CUDA_SUCCESS)
      throw Error(ErrorKind::device, "a stream cannot signal: error {} of the driver", int{result});
  }

 private:
  static CUstreamBatchMemOpParams write(uint32_t* signal, uint32_t value) {
    CUstreamBatchMemOpParams operation{};
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = reinterpret_cast<CUdeviceptr>(signal);
    operation.writeValue.value = value;
    return operation;
  }

  BatchMemOp batch_mem_op_ = find_batch_mem_op();
};

} // namespace

std::unique_ptr<PeerAccess> make_cuda_peer_access() {
  return std::make_unique<CudaPeerAccess>();
}

} // namespace fvlm::device
