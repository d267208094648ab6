// Author: a folder with recipe files, and the results of running them.
#pragma once
#include "base/error.h"
#include "base/scratch_folder.h"
#include "recipe/sandbox.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

namespace fvlm::recipe {

inline SandboxConfig test_config() {
  SandboxConfig config;
  for (const char* name : {"recipe", "model", "adamw", "mix", "next_token", "dpo", "cosine"})
    config.constructors.push_back({name});
  config.constructors.push_back({"stage", 1});
  config.constructors.push_back({"scale_lr", 1, false});
  config.constructors.push_back({"stop_stage", 0, false});
  config.library = LIBRARY;
  config.limits = {.instructions = 5'000'000, .memory_bytes = 16 << 20, .nesting = 50, .seconds = 60};
  config.limits.source_bytes = 1 << 20;
  return config;
}

class Author {
 public:
  const std::filesystem::path& folder() const { return folder_.path(); }

  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  Value run(const std::string& text, SandboxConfig config = test_config()) {
    write("recipe.lua", text);
    sandbox_ = std::make_unique<Sandbox>(std::move(config));
    return sandbox_->run(folder_ / "recipe.lua");
  }

  Sandbox& sandbox() { return *sandbox_; }

  // The error of a run that must fail; its place without the folder's name.
  Error failure(const std::string& text, SandboxConfig config = test_config()) {
    try {
      run(text, std::move(config));
    } catch (const Error& error) {
      return inside(error);
    }
    ADD_FAILURE() << "the recipe ran without an error:\n" << text;
    return Error(ErrorKind::internal, "no error");
  }

  Error inside(const Error& error) const {
    Error shown(error.kind(), without_folder(error.what()));
    shown.at(without_folder(error.where())).advise(error.advice());
    return shown;
  }

  std::string without_folder(std::string text) const {
    std::string prefix = folder_.path().string() + "/";
    for (size_t at; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
    return text;
  }

 private:
  ScratchFolder folder_;
  std::unique_ptr<Sandbox> sandbox_;
};

inline const Table& table(const Value& value) {
  auto* found = std::get_if<std::shared_ptr<const Table>>(&value.data);
  if (!found) throw std::runtime_error("expected a table, got " + kind_name(value));
  return **found;
}

inline const Value& field(const Value& value, std::string_view key) {
  for (const auto& [name, found] : table(value).fields)
    if (name == key) return found;
  throw std::runtime_error("no field '" + std::string(key) + "'");
}

inline const Value& item(const Value& value, size_t index) {
  return table(value).items.at(index - 1);
}
inline std::string text(const Value& value) {
  return std::get<std::string>(value.data);
}
inline int64_t integer(const Value& value) {
  return std::get<int64_t>(value.data);
}
inline double number(const Value& value) {
  return std::get<double>(value.data);
}
inline int line(const Value& value) {
  return value.origin.line;
}

inline Value plain(std::vector<std::pair<std::string, Value>> fields) {
  auto made = std::make_shared<Table>();
  made->fields = std::move(fields);
  return {std::shared_ptr<const Table>(std::move(made)), {}};
}

} // namespace fvlm::recipe
