// The plugin under test: a library on disk, or the engine's own reference.
#pragma once
#include "check/process_state.h"

#include <fvlm/abi.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::check {

// The declarations of plugin.toml, if there is one.
struct DeclaredPlugin {
  std::string name, version;
  std::vector<std::string> kinds;
  std::string abi; // "1.0"
};

class Subject {
 public:
  explicit Subject(const std::filesystem::path& library, std::optional<DeclaredPlugin> declared = std::nullopt);
  explicit Subject(fvlm_plugin_entry_function built_in); // linked into this program: there is no library to open

  std::optional<std::string> refusal; // by the engine's loader: see Job
  std::vector<std::string> command;   // how another process is started: see Job

  bool built_in() const { return library_.empty(); }
  const std::filesystem::path& library() const { return library_; }
  const std::optional<DeclaredPlugin>& declared() const { return declared_; }

  // dlopen() and the entry's address. Returns "" or the error.
  std::string open();
  // Calls the entry with the usual host. Returns "" or the error.
  std::string enter();

  // The process's state after enter(), before any function of a table was called.
  const ProcessState& entered() const { return entered_; }

  void* handle() const { return handle_; }
  fvlm_plugin_entry_function entry() const { return entry_; }
  const fvlm_plugin& plugin() const { return *plugin_; }

  // The kinds that the plugin has a table for. Candidates are the declared kinds, those of the SDK, and names that the
  // library's bytes contain.
  std::vector<std::string> kinds() const;
  const void* table(const std::string& kind) const;
  // The same, with NULL for the functions that a table of an older minor does not reach to.
  const void* complete_table(const std::string& kind) const;

 private:
  std::vector<std::string> candidate_kinds() const;
  std::filesystem::path library_;
  std::optional<DeclaredPlugin> declared_;
  void* handle_ = nullptr;
  fvlm_plugin_entry_function entry_ = nullptr;
  const fvlm_plugin* plugin_ = nullptr;
  ProcessState entered_;
  mutable std::map<std::string, std::vector<uintptr_t>> completed_; // by kind
};

} // namespace fvlm::check
