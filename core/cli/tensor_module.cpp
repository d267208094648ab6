#include "cli/tensor_module.h"

#include "base/error.h"
#include "base/file.h"
#include "cli/torch_library.h"
#include "device/probe.h"

#include <fmt/format.h>

#include <cstring>
#include <dlfcn.h>

namespace fvlm::cli {
namespace {

const TensorModule& load() {
  load_torch(find_torch());
  auto path = program_folder() / ".." / "lib" / "fvlm" / "libfvlm_engine.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw Error(ErrorKind::device, fmt::format("the tensor module does not load: {}", dlerror()))
        .at(path.string())
        .advise("install fvlm-engine whole: bin and lib belong together");
  auto entry = reinterpret_cast<const TensorModule* (*)()>(dlsym(library, "fvlm_tensor_module"));
  if (!entry || std::strcmp(entry()->version, FVLM_VERSION) != 0)
    throw Error(ErrorKind::device, "the tensor module is of another build than the program")
        .at(path.string())
        .advise("install fvlm-engine whole: bin and lib belong together");
  return *entry();
}

} // namespace

void use_device(const std::string& device) {
  if (device == "cpu") return;
  if (device != "cuda") throw Error(ErrorKind::usage, fmt::format("--device wants cpu or cuda, not '{}'", device));
  if (const auto probe = device::probe_cuda(); probe.devices.empty())
    throw Error(ErrorKind::device, "there is no CUDA device: " + probe.problem);
  load_torch_cuda(find_torch());
}

std::string best_device() {
  return device::probe_cuda().devices.empty() ? "cpu" : "cuda";
}

const TensorModule& tensor_module() {
  static const TensorModule& module = load();
  return module;
}

} // namespace fvlm::cli
