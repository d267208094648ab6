#include "check/subject.h"

#include "base/file.h"
#include "check/host.h"
#include "check/probe.h"

#include <algorithm>
#include <dlfcn.h>

namespace fvlm::check {

Subject::Subject(const std::filesystem::path& library, std::optional<Declared> declared)
    : library_(std::filesystem::absolute(library)), declared_(std::move(declared)) {}

Subject::Subject(fvlm_plugin_entry_function built_in) : entry_(built_in) {}

std::string Subject::open() {
  if (built_in() || handle_) return "";
  handle_ = dlopen(library_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle_) return dlerror();
  entry_ = reinterpret_cast<fvlm_plugin_entry_function>(dlsym(handle_, FVLM_PLUGIN_ENTRY));
  return entry_ ? "" : "it exports no " FVLM_PLUGIN_ENTRY;
}

std::string Subject::enter() {
  if (plugin_) return "";
  if (auto trouble = open(); !trouble.empty()) return trouble;
  try {
    plugin_ = entry_(TestHost::with_threads(2).abi());
  } catch (...) {
    return "the entry threw an exception";
  }
  if (!plugin_) return "the entry returned NULL to a host of the same ABI version";
  if (!plugin_->table) return "its function table() is NULL";
  if (!built_in()) watch_calls(handle_);
  entered_ = ProcessState::now();
  return "";
}

const void* Subject::table(const std::string& kind) const {
  return plugin_->table(kind.c_str());
}

std::vector<std::string> Subject::kinds() const {
  std::vector<std::string> found;
  for (const auto& kind : candidate_kinds())
    if (table(kind)) found.push_back(kind);
  return found;
}

std::vector<std::string> Subject::candidate_kinds() const {
  std::vector<std::string> kinds{"fvlm.attention/1",      "fvlm.loss/1",    "fvlm.optimizer/1:adamw",
                                 "fvlm.optimizer/1:muon", "fvlm.packer/1",  "fvlm.quantizer/1:int8",
                                 "fvlm.quantizer/1:int4", "fvlm.kernels/1", "fvlm.video/1"};
  auto add = [&](const std::string& kind) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  };
  if (declared_)
    for (const auto& kind : declared_->kinds) add(kind);
  if (!built_in()) {
    // A variant of an author's own ("fvlm.optimizer/1:lion") in a library without a manifest: its name is a string in
    // it.
    std::string bytes = read_file(library_);
    for (std::string_view family : {"fvlm.optimizer/1:", "fvlm.quantizer/1:"})
      for (size_t at = bytes.find(family); at != std::string::npos; at = bytes.find(family, at + 1)) {
        std::string kind(bytes.c_str() + at);
        if (kind.size() > family.size() && kind.size() < 80) add(kind);
      }
  }
  return kinds;
}

} // namespace fvlm::check
