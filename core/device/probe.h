// What devices this machine has, asked of the driver itself: no LibTorch, no toolkit.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fvlm::device {

struct CudaDevice {
  int index;
  std::string name;
  int capability_major, capability_minor; // 9, 0: sm_90
  uint64_t memory_bytes;
};

struct CudaProbe {
  std::vector<CudaDevice> devices;
  int driver_version = 0; // 13000: CUDA 13.0; 0: no driver
  std::string problem;    // why there is no device, as a user reads it; empty where there is one
};

CudaProbe probe_cuda();

struct CpuProbe {
  std::string name;
  int threads;
  std::vector<std::string> features; // of avx2, fma, avx512f, ... those that plugins look for
};

CpuProbe probe_cpu();

} // namespace fvlm::device
