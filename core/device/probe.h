// What devices this machine has, asked of the driver itself: no LibTorch, no toolkit.
#pragma once
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
  bool driver = false;         // there is something that calls itself one
  std::string problem, advice; // why there is no device and what to do, as a user reads it; empty where there is one
};

CudaProbe probe_cuda();

// What others do on a device, by the driver's management library, which needs no context there. What it does not say,
// or where it is missing, stays empty.
struct CudaUse {
  struct Process {
    unsigned id;
    std::optional<uint64_t> bytes;
  };
  std::optional<uint64_t> free_bytes;
  std::vector<Process> processes; // those of other containers may be hidden
};

CudaUse probe_use(const CudaDevice& device);

// What stands in the way of work on a device.
struct Obstacle {
  std::string what, advice;
  bool stops; // else there may be room for something small
};

std::optional<Obstacle> obstacle_on(const CudaDevice& device, const CudaUse& use);

struct CpuProbe {
  std::string name;
  int threads;
  std::vector<std::string> features; // of avx2, fma, avx512f, ... those that plugins look for
};

CpuProbe probe_cpu();

} // namespace fvlm::device
