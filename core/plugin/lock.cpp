#include "plugin/lock.h"

#include "base/error.h"
#include "base/file.h"
#include "base/new_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdlib>

namespace fvlm {
namespace fs = std::filesystem;
namespace {

constexpr const char* format_name = "fvlm.plugin-lock/1";

[[noreturn]] void malformed(const fs::path& path, const std::string& what) {
  throw Error(ErrorKind::plugin, "the lock file is malformed: " + what)
      .at(path.string())
      .advise("remove it (rm '{}') and record your trusted plugins again: fvlm-engine plugin trust PLUGIN...",
              path.string());
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

} // namespace

fs::path PluginLock::default_path() {
  const char* xdg = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  fs::path config = xdg && *xdg ? fs::path(xdg) : fs::path(home && *home ? home : "/") / ".config";
  return config / "fvlm-engine" / "plugins.lock";
}

PluginLock PluginLock::read(const fs::path& path) {
  std::string text;
  try {
    text = read_file(path, 1 << 20);
  } catch (const Error& error) {
    throw Error(ErrorKind::plugin, "the lock file cannot be read: {}", error.what()).at(path.string());
  }
  auto document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object()) malformed(path, "expected a JSON object");
  if (document.value("format", nlohmann::json()) != format_name)
    malformed(path, fmt::format("its format is not \"{}\"", format_name));
  auto plugins = document.find("plugins");
  if (plugins == document.end() || !plugins->is_object()) malformed(path, "no object \"plugins\"");
  PluginLock lock;
  lock.path_ = path;
  for (const auto& [name, entry] : plugins->items()) {
    if (!entry.is_object() || !entry.contains("sha256") || !entry["sha256"].is_string() || !is_sha256(entry["sha256"]))
      malformed(path, fmt::format("\"{}\" has no \"sha256\" of 64 hexadecimal digits", name));
    auto library = entry.find("library");
    lock.entries_[name] = {entry["sha256"], library != entry.end() && library->is_string() ? *library : ""};
  }
  return lock;
}

void PluginLock::write(const fs::path& path) const {
  nlohmann::ordered_json document = {{"format", format_name}, {"plugins", nlohmann::ordered_json::object()}};
  for (const auto& [name, entry] : entries_)
    document["plugins"][name] = {{"sha256", entry.sha256}, {"library", entry.library}};
  make_folders(path.parent_path());
  write_file_atomic(path, document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void PluginLock::require(const std::string& name, const std::string& sha256, const fs::path& library) const {
  auto found = entries_.find(name);
  std::string advice = fmt::format("if you trust it, run: fvlm-engine plugin trust {}", library.string());
  if (found == entries_.end())
    throw Error(ErrorKind::plugin, "'{}' is not in the lock file {}", name, path_.string())
        .at(library.string())
        .advise(advice);
  if (found->second.sha256 != sha256)
    throw Error(ErrorKind::plugin, "its SHA-256 is {}..., but the lock file {} has {}...", sha256.substr(0, 12),
                path_.string(), found->second.sha256.substr(0, 12))
        .at(library.string())
        .advise(advice);
}

} // namespace fvlm
