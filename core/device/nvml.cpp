#include "device/nvml.h"

#include "device/library_symbol.h"

#include <utility>

namespace fvlm::device {
namespace {

constexpr int clock_of_multiprocessors = 1; // NVML_CLOCK_SM
constexpr size_t max_processes = 64;

} // namespace

struct Nvml::Functions {
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Process {
    unsigned id;
    unsigned long long bytes; // all ones: unknown
    unsigned gpu_instance, compute_instance;
  };
  struct Utilization {
    unsigned gpu, memory; // percent
  };
  int (*init)();
  int (*shutdown)();
  int (*by_bus)(const char*, void**);
  // Null where the library lacks them.
  int (*memory)(void*, Memory*);
  int (*processes)(void*, unsigned*, Process*);
  int (*clock)(void*, int, unsigned*);
  int (*power)(void*, unsigned*);
  int (*utilization)(void*, Utilization*);
};

std::unique_ptr<Nvml> Nvml::open(const std::string& bus) {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  auto functions = std::make_unique<Functions>();
  if (!library || !find_symbol(library, "nvmlInit_v2", functions->init) ||
      !find_symbol(library, "nvmlShutdown", functions->shutdown) ||
      !find_symbol(library, "nvmlDeviceGetHandleByPciBusId_v2", functions->by_bus) || functions->init() != 0)
    return nullptr;
  (void)find_symbol(library, "nvmlDeviceGetMemoryInfo", functions->memory);
  (void)find_symbol(library, "nvmlDeviceGetComputeRunningProcesses_v3", functions->processes);
  (void)find_symbol(library, "nvmlDeviceGetClockInfo", functions->clock);
  (void)find_symbol(library, "nvmlDeviceGetPowerUsage", functions->power);
  (void)find_symbol(library, "nvmlDeviceGetUtilizationRates", functions->utilization);
  void* gpu = nullptr;
  if (functions->by_bus(bus.c_str(), &gpu) != 0) {
    functions->shutdown();
    return nullptr;
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(functions), gpu));
}

Nvml::Nvml(std::unique_ptr<Functions> functions, void* gpu) : functions_(std::move(functions)), gpu_(gpu) {}

Nvml::~Nvml() {
  functions_->shutdown();
}

std::optional<Nvml::Memory> Nvml::memory() const {
  Functions::Memory memory{};
  if (!functions_->memory || functions_->memory(gpu_, &memory) != 0) return {};
  return Memory{memory.total, memory.free};
}

std::vector<Nvml::Process> Nvml::processes() const {
  std::vector<Functions::Process> raw(max_processes);
  auto count = static_cast<unsigned>(raw.size());
  if (!functions_->processes || functions_->processes(gpu_, &count, raw.data()) != 0) return {};
  std::vector<Process> processes;
  for (unsigned i = 0; i < count; ++i) {
    Process& process = processes.emplace_back();
    process.id = raw[i].id;
    if (raw[i].bytes != ~0ULL) process.bytes = raw[i].bytes;
  }
  return processes;
}

std::optional<double> Nvml::sm_megahertz() const {
  unsigned megahertz = 0;
  if (!functions_->clock || functions_->clock(gpu_, clock_of_multiprocessors, &megahertz) != 0) return {};
  return megahertz;
}

std::optional<double> Nvml::watts() const {
  unsigned milliwatts = 0;
  if (!functions_->power || functions_->power(gpu_, &milliwatts) != 0) return {};
  return milliwatts * 1e-3;
}

std::optional<double> Nvml::utilization() const {
  Functions::Utilization rates{};
  if (!functions_->utilization || functions_->utilization(gpu_, &rates) != 0) return {};
  return rates.gpu * 1e-2;
}

} // namespace fvlm::device
