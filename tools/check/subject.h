// The plugin under test: a library on disk, or the engine's own reference.
#pragma once
#include "check/process_state.h"

#include <fvlm/abi.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fvlm::check {

// What plugin.toml says, where there is one.
struct Declared {
  std::string name, version;
  std::vector<std::string> kinds;
};

class Subject {
 public:
  explicit Subject(const std::filesystem::path& library, std::optional<Declared> declared = std::nullopt);
  explicit Subject(fvlm_plugin_entry_function built_in); // linked into this program: there is no library to open

  std::optional<std::string> refusal; // by the engine's loader: see Job
  std::vector<std::string> command;   // how another process is started: see Job

  bool built_in() const { return library_.empty(); }
  const std::filesystem::path& library() const { return library_; }
  const std::optional<Declared>& declared() const { return declared_; }

  // dlopen and the entry's address. "" when that went well, else why not.
  std::string open();
  // Calls the entry with the usual host. "" when it answered with a plugin.
  std::string enter();

  // The process's state when the plugin had answered, before any function of a table was called.
  const ProcessState& entered() const { return entered_; }

  void* handle() const { return handle_; }
  fvlm_plugin_entry_function entry() const { return entry_; }
  const fvlm_plugin& plugin() const { return *plugin_; }

  // The kinds it gives tables for, of those declared, those that the SDK names and those whose names stand in the file.
  std::vector<std::string> kinds() const;
  const void* table(const std::string& kind) const;

 private:
  std::vector<std::string> candidate_kinds() const;
  std::filesystem::path library_;
  std::optional<Declared> declared_;
  void* handle_ = nullptr;
  fvlm_plugin_entry_function entry_ = nullptr;
  const fvlm_plugin* plugin_ = nullptr;
  ProcessState entered_;
};

} // namespace fvlm::check
