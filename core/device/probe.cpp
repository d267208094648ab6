#include "device/probe.h"

#include "base/text.h"
#include "device/library_symbol.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <thread>

namespace fvlm::device {
namespace {

// The few functions of the CUDA driver API that a probe needs; their signatures are stable since CUDA 4.1.
struct Driver {
  int (*init)(unsigned);
  int (*version)(int*);
  int (*count)(int*);
  int (*get)(int*, int);
  int (*name)(char*, int, int);
  int (*memory)(size_t*, int);
  int (*attribute)(int*, int, int);
  int (*bus)(char*, int, int);
};

constexpr int attribute_compute_mode = 20, attribute_capability_major = 75, attribute_capability_minor = 76;
constexpr int oldest_driver = 13000; // the wheel's CUDA
constexpr int oldest_capability = 8; // sm_80: the first with bf16
constexpr const char* newer_driver = "install NVIDIA's driver 580 or newer";

// Results of cuInit, and what to do about them.
struct Failure {
  int status;
  const char *description, *advice;
};
constexpr Failure failures[] = {
    {34, "libcuda.so.1 is the toolkit's stub, not a driver", "take the toolkit's stubs out of LD_LIBRARY_PATH"},
    {46, "the GPU is held by another process or not available", "see `nvidia-smi` for who uses it"},
    {802, "the system is not ready yet", "start nvidia-fabricmanager, which GPUs behind an NVSwitch need"},
    {803, "the driver's library and its kernel module have different versions",
     "restart the machine, or reload the kernel module, after installing a driver"},
    {804, "the toolkit's compatibility driver does not work on this GPU",
     "take its cuda-compat folder out of LD_LIBRARY_PATH, or install NVIDIA's driver 580 or newer"},
    {999, "it cannot reach its kernel module", "see whether `nvidia-smi` works; `modprobe nvidia-uvm` may be missing"},
};

void no_gpu(CudaProbe& probe) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  probe.problem = "the driver works but reports no GPU";
  if (visible) probe.problem += fmt::format(", and CUDA_VISIBLE_DEVICES is '{}'", visible);
  probe.advice = visible ? "unset CUDA_VISIBLE_DEVICES, or name one that `nvidia-smi -L` lists"
                         : "see whether `nvidia-smi -L` lists one; a container has to be started with --gpus all";
}

// libcuda.so.1 could not be loaded.
void no_library(CudaProbe& probe, std::string_view linker) {
  if (linker.find("No such file") != std::string_view::npos) {
    probe.problem = "no NVIDIA driver: libcuda.so.1 was not found";
    probe.advice = fmt::format("{} if there is a GPU; a container has to be started with --gpus all", newer_driver);
    return;
  }
  probe.driver = true;
  probe.problem = fmt::format("the NVIDIA driver cannot be loaded: {}", linker);
  probe.advice = newer_driver;
}

CudaDevice describe(const Driver& driver, int index) {
  CudaDevice device{};
  int handle = 0;
  char name[128] = "", bus[64] = "";
  size_t bytes = 0;
  driver.get(&handle, index);
  driver.name(name, sizeof name, handle);
  driver.memory(&bytes, handle);
  driver.bus(bus, sizeof bus, handle);
  driver.attribute(&device.capability_major, attribute_capability_major, handle);
  driver.attribute(&device.capability_minor, attribute_capability_minor, handle);
  driver.attribute(&device.compute_mode, attribute_compute_mode, handle);
  device.index = index;
  device.name = name;
  device.memory_bytes = bytes;
  device.bus = bus;
  return device;
}

std::string processes_text(const CudaUse& use) {
  std::vector<std::string> all;
  for (const auto& process : use.processes)
    all.push_back(fmt::format("process {}{}", process.id, process.bytes ? " with " + human_bytes(*process.bytes) : ""));
  return join(all, ", ");
}

} // namespace

CudaProbe probe_cuda() {
  CudaProbe probe;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    no_library(probe, dlerror());
    return probe;
  }
  probe.driver = true;
  Driver driver;
  if (!find_symbol(library, "cuInit", driver.init) || !find_symbol(library, "cuDriverGetVersion", driver.version) ||
      !find_symbol(library, "cuDeviceGetCount", driver.count) || !find_symbol(library, "cuDeviceGet", driver.get) ||
      !find_symbol(library, "cuDeviceGetName", driver.name) ||
      !find_symbol(library, "cuDeviceTotalMem_v2", driver.memory) ||
      !find_symbol(library, "cuDeviceGetAttribute", driver.attribute) ||
      !find_symbol(library, "cuDeviceGetPCIBusId", driver.bus)) {
    probe.problem = "libcuda.so.1 lacks functions that every driver has; it may be the toolkit's stub";
    probe.advice = failures[0].advice;
    return probe;
  }
  driver.version(&probe.driver_version);
  const int status = driver.init(0);
  if (probe.driver_version > 0 && probe.driver_version < oldest_driver) {
    probe.problem = fmt::format("the driver is too old: it supports CUDA {}.{}, the engine needs {}.{}",
                                probe.driver_version / 1000, probe.driver_version % 1000 / 10, oldest_driver / 1000,
                                oldest_driver % 1000 / 10);
    probe.advice = newer_driver;
    return probe;
  }
  constexpr int no_device = 100;
  if (status != 0 && status != no_device) {
    const auto* known = std::ranges::find(failures, status, &Failure::status);
    const bool is_known = known != std::end(failures);
    probe.problem = fmt::format("the NVIDIA driver cannot be initialized: {}cuInit returned {}",
                                is_known ? fmt::format("{}; ", known->description) : "", status);
    probe.advice = is_known ? known->advice : "see whether `nvidia-smi` works";
    return probe;
  }
  int count = 0;
  if (status == no_device || driver.count(&count) != 0 || count == 0) {
    no_gpu(probe);
    return probe;
  }
  for (int i = 0; i < count; ++i) probe.devices.push_back(describe(driver, i));
  return probe;
}

CudaUse probe_use(const CudaDevice& device) {
  CudaUse use;
  const auto nvml = Nvml::open(device.bus);
  if (!nvml) return use;
  // NVML reports the whole GPU, which is of no use for a MIG partition.
  if (const auto memory = nvml->memory(); memory && memory->total < device.memory_bytes * 5 / 4)
    use.free_bytes = memory->free;
  use.processes = nvml->processes();
  return use;
}

std::optional<Obstacle> obstacle_on(const CudaDevice& device, const CudaUse& use) {
  constexpr int prohibited = 2, exclusive = 3;
  constexpr uint64_t min_free = uint64_t{1} << 30; // a CUDA context and LibTorch's libraries take half of it
  const std::string other = "select another GPU with CUDA_VISIBLE_DEVICES, or use --device cpu";
  if (device.capability_major < oldest_capability)
    return Obstacle{fmt::format("{} is sm_{}{}, older than sm_{}0, which the engine needs", device.name,
                                device.capability_major, device.capability_minor, oldest_capability),
                    other, true};
  const std::string set_default =
      fmt::format("`nvidia-smi -i {} -c DEFAULT` (as root) allows several processes", device.bus);
  if (device.compute_mode == prohibited)
    return Obstacle{fmt::format("{} is in compute mode 'prohibited'", device.name),
                    fmt::format("{}; or {}", set_default, other), true};
  if (device.compute_mode == exclusive && !use.processes.empty())
    return Obstacle{fmt::format("{} is in exclusive compute mode and used by {}", device.name, processes_text(use)),
                    fmt::format("wait for that process, or {}; {}", other, set_default), true};
  if (!use.free_bytes || *use.free_bytes >= device.memory_bytes / 2) return {};
  return Obstacle{fmt::format("{} has {} of {} free; in use by {}", device.name, human_bytes(*use.free_bytes),
                              human_bytes(device.memory_bytes),
                              use.processes.empty() ? "processes that are not visible here" : processes_text(use)),
                  "wait for those processes, or " + other, *use.free_bytes < min_free};
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
