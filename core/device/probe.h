// Detects this machine's devices by asking the driver, without LibTorch or the CUDA toolkit.
#pragma once
#include "device/nvml.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::device {

struct CudaDevice {
  int index;
  std::string name;
  int capability_major, capability_minor; // 9, 0: sm_90
  uint64_t memory_bytes;
  std::string bus;  // "00000000:1B:00.0"
  int compute_mode; // CU_COMPUTEMODE_*
};

struct CudaProbe {
  std::vector<CudaDevice> devices;
  int driver_version = 0;      // 13000: CUDA 13.0; 0: no driver
  bool driver = false;         // a library named libcuda.so.1 exists, whether or not it works
  std::string problem, advice; // for the user: why there is no device, and what to do; empty where there is one
};

CudaProbe probe_cuda();

// Use of a device by other processes, as NVML reports it, which needs no CUDA context. Fields that NVML does not report
// are empty, and all of them where it is missing.
struct CudaUse {
  std::optional<uint64_t> free_bytes;
  std::vector<Nvml::Process> processes;
};

CudaUse probe_use(const CudaDevice& device);

// A reason why work on a device will fail or may fail.
struct Obstacle {
  std::string what, advice;
  bool stops; // it will fail; else a small model may fit
};

std::optional<Obstacle> obstacle_on(const CudaDevice& device, const CudaUse& use);

struct CpuProbe {
  std::string name;
  int threads;
  std::vector<std::string> features; // instruction sets that plugins use: avx2, fma, avx512f, ...
};

CpuProbe probe_cpu();

} // namespace fvlm::device
