#include "cli/tensor_module.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/torch_library.h"
#include "device/probe.h"
#include "device/runtime.h"

#include <fmt/format.h>

#include <cstring>
#include <dlfcn.h>
#include <filesystem>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

fs::path own_library(const char* name) {
  return program_folder() / ".." / "lib" / "fvlm" / name;
}

void* open_own(const fs::path& path) {
  if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  throw Error(ErrorKind::device, "cannot load a part of the engine: {}", dlerror())
      .at(path.string())
      .advise("reinstall fvlm-engine: bin and lib must come from the same build");
}

const TensorModule& load() {
  load_torch(find_torch());
  const auto path = own_library("libfvlm_engine.so");
  void* library = open_own(path);
  auto entry = reinterpret_cast<const TensorModule* (*)()>(dlsym(library, "fvlm_tensor_module"));
  if (!entry || std::strcmp(entry()->version, FVLM_VERSION) != 0)
    throw Error(ErrorKind::device, "the tensor module and the program come from different builds")
        .at(path.string())
        .advise("reinstall fvlm-engine: bin and lib must come from the same build");
  return *entry();
}

// A build without a CUDA toolkit has no such library. The device then works without streams and CUDA graphs.
void load_cuda_runtime() {
  const auto path = own_library("libfvlm_cuda.so");
  std::error_code ignored;
  if (device::runtime() || !fs::exists(path, ignored)) return;
  const auto entry = reinterpret_cast<device::Runtime* (*)()>(dlsym(open_own(path), "fvlm_cuda_runtime"));
  if (!entry)
    throw Error(ErrorKind::device, "libfvlm_cuda.so and the program come from different builds").at(path.string());
  device::use_runtime(entry());
}

} // namespace

void check_device_name(const std::string& device) {
  if (device == "cpu" || device == "cuda") return;
  Error error(ErrorKind::usage, "--device: expected cpu or cuda, got '{}'", device);
  if (device.starts_with("cuda:"))
    error.advise("--device cuda uses the first visible GPU; set CUDA_VISIBLE_DEVICES={} to choose it",
                 device.substr(5));
  else if (device == "gpu")
    error.advise("use --device cuda");
  throw error;
}

void initialize_device(const std::string& device) {
  check_device_name(device);
  if (device == "cpu") return;
  const auto probe = device::probe_cuda();
  if (probe.devices.empty())
    throw Error(ErrorKind::device, "there is no CUDA device: " + probe.problem).advise(probe.advice);
  const auto& first = probe.devices.front();
  if (const auto obstacle = device::obstacle_on(first, device::probe_use(first))) {
    if (obstacle->stops) throw Error(ErrorKind::device, "cuda:0: " + obstacle->what).advise(obstacle->advice);
    log_warning("cuda:0: {}", obstacle->what);
  }
  load_torch_cuda(find_torch());
  load_cuda_runtime();
}

std::string default_device() {
  const auto probe = device::probe_cuda();
  if (!probe.devices.empty()) return "cuda";
  if (probe.driver) log_warning("using the CPU: {}\n  {}", probe.problem, probe.advice);
  return "cpu";
}

const TensorModule& tensor_module() {
  static const TensorModule& module = load();
  return module;
}

} // namespace fvlm::cli
