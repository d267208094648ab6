#include "device/probe.h"

#include <fmt/format.h>

#include <cstddef>
#include <dlfcn.h>
#include <fstream>
#include <thread>

namespace fvlm::device {
namespace {

// The few entry points of the driver's C interface that a probe needs; their signatures are stable since CUDA 3.2.
struct Driver {
  int (*init)(unsigned);
  int (*version)(int*);
  int (*count)(int*);
  int (*get)(int*, int);
  int (*name)(char*, int, int);
  int (*memory)(size_t*, int);
  int (*attribute)(int*, int, int);
};

template <class Function>
bool find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

constexpr int attribute_capability_major = 75, attribute_capability_minor = 76;
constexpr int oldest_driver = 13000; // the wheel's CUDA

} // namespace

CudaProbe probe_cuda() {
  CudaProbe probe;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    probe.problem = "no NVIDIA driver: libcuda.so.1 is not on this machine";
    return probe;
  }
  Driver driver;
  if (!find(library, "cuInit", driver.init) || !find(library, "cuDriverGetVersion", driver.version) ||
      !find(library, "cuDeviceGetCount", driver.count) || !find(library, "cuDeviceGet", driver.get) ||
      !find(library, "cuDeviceGetName", driver.name) || !find(library, "cuDeviceTotalMem_v2", driver.memory) ||
      !find(library, "cuDeviceGetAttribute", driver.attribute)) {
    probe.problem = "libcuda.so.1 lacks entry points that every driver has: is it a stub of the toolkit?";
    return probe;
  }
  if (int status = driver.init(0); status != 0) {
    probe.problem = fmt::format("the NVIDIA driver does not start (cuInit gives {})", status);
    return probe;
  }
  driver.version(&probe.driver_version);
  if (probe.driver_version < oldest_driver) {
    probe.problem =
        fmt::format("the driver is too old: it speaks CUDA {}.{}, the engine needs {}.{}", probe.driver_version / 1000,
                    probe.driver_version % 1000 / 10, oldest_driver / 1000, oldest_driver % 1000 / 10);
    return probe;
  }
  int count = 0;
  if (driver.count(&count) != 0 || count == 0) {
    probe.problem = "the driver runs but shows no GPU (CUDA_VISIBLE_DEVICES?)";
    return probe;
  }
  for (int i = 0; i < count; ++i) {
    int handle = 0;
    char name[128] = "";
    size_t bytes = 0;
    CudaDevice device{i, "", 0, 0, 0};
    driver.get(&handle, i);
    driver.name(name, sizeof name, handle);
    driver.memory(&bytes, handle);
    driver.attribute(&device.capability_major, attribute_capability_major, handle);
    driver.attribute(&device.capability_minor, attribute_capability_minor, handle);
    device.name = name;
    device.memory_bytes = bytes;
    probe.devices.push_back(device);
  }
  return probe;
}

CpuProbe probe_cpu() {
  CpuProbe probe{"unknown", static_cast<int>(std::thread::hardware_concurrency()), {}};
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) {
      if (size_t colon = line.find(": "); colon != std::string::npos) probe.name = line.substr(colon + 2);
      break;
    }
#if defined(__x86_64__)
  auto add = [&](bool has, const char* feature) {
    if (has) probe.features.emplace_back(feature);
  };
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
#endif
  return probe;
}

} // namespace fvlm::device
