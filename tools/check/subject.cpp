#include "check/subject.h"

#include "base/file.h"
#include "check/host.h"
#include "check/probe.h"
#include "plugin/kinds.h"

#include <algorithm>
#include <cstring>
#include <dlfcn.h>

namespace fvlm::check {

Subject::Subject(const std::filesystem::path& library, std::optional<DeclaredPlugin> declared)
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
  if (auto failure = open(); !failure.empty()) return failure;
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

const void* Subject::complete_table(const std::string& kind) const {
  const void* given = table(kind);
  const auto name = parse_kind(kind);
  const Family* family = name ? find_family(name->family) : nullptr;
  if (!given || !family || static_cast<const fvlm_table*>(given)->struct_size >= family->size) return given;
  auto& copy = completed_[kind];
  copy.assign(family->size / sizeof(uintptr_t) + 1, 0);
  std::memcpy(copy.data(), given, static_cast<const fvlm_table*>(given)->struct_size);
  return copy.data();
}

std::vector<std::string> Subject::kinds() const {
  std::vector<std::string> found;
  for (const auto& kind : candidate_kinds())
    if (table(kind)) found.push_back(kind);
  return found;
}

std::vector<std::string> Subject::candidate_kinds() const {
  std::vector<std::string> kinds = kinds_to_ask(built_in() ? "" : read_file(library_));
  if (declared_)
    for (const auto& kind : declared_->kinds)
      if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
  return kinds;
}

} // namespace fvlm::check
