#include "plugin/manifest.h"

#include "base/error.h"
#include "base/text.h"
#include "plugin/trust.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

namespace fvlm {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t max_bytes = 64 << 10;
constexpr size_t max_text = 1024;

std::string list_of_devices() {
  return "\"cpu\" or \"cuda\"";
}

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = {"name", "version", "description", "license",      "library",
                                                "abi",  "kinds",   "devices",     "architectures"};
  return keys;
}

bool is_name(std::string_view text) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return !text.empty() && text.size() <= 64 && letter(text[0]) &&
         std::ranges::all_of(text, [&](char c) { return letter(c) || c == '-' || c == '_' || c == '.'; });
}

bool is_architecture(std::string_view text) {
  if (!text.starts_with("sm_")) return false;
  text.remove_prefix(3);
  size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return digits >= 2 && digits <= 3 &&
         (text.size() == digits || (text.size() == digits + 1 && (text.back() == 'a' || text.back() == 'f')));
}

class Parser {
 public:
  Parser(std::string_view text, const fs::path& file) : file_(file) {
    try {
      table_ = toml::parse(text, file.string());
    } catch (const toml::parse_error& error) {
      fail_line(error.source().begin.line, std::string(error.description()), "correct the TOML");
    }
  }

  Manifest run() {
    for (const auto& [key, node] : table_) check_known(std::string(key.str()), node);
    Manifest manifest;
    manifest.file = file_;
    manifest.name = text("name");
    if (!is_name(manifest.name) || manifest.name == "auto")
      fail("name", fmt::format("'{}' cannot be a plugin's name", manifest.name),
           "use lower-case letters, digits, '-', '_' and '.', e.g. \"attention-mine\"");
    manifest.version = text("version");
    manifest.description = printable(text("description"));
    manifest.license = printable(text("license"));
    manifest.library = text("library");
    if (manifest.library.find('/') != std::string::npos || manifest.library == ".." || manifest.library == ".")
      fail("library", fmt::format("'{}' is a path", manifest.library),
           "name a file in the folder of plugin.toml, without folders");
    read_abi(manifest);
    read_kinds(manifest);
    manifest.devices = list("devices");
    for (const auto& device : manifest.devices)
      if (device != "cpu" && device != "cuda")
        fail("devices", fmt::format("unknown device '{}'", device), "one of " + list_of_devices());
    if (table_.contains("architectures")) manifest.architectures = list("architectures");
    for (const auto& architecture : manifest.architectures)
      if (!is_architecture(architecture))
        fail("architectures", fmt::format("unknown architecture '{}'", architecture), "write it like \"sm_90a\"");
    return manifest;
  }

 private:
  [[noreturn]] void fail_line(uint32_t line, std::string what, std::string advice) const {
    throw Error(ErrorKind::plugin, std::move(what))
        .at(line ? fmt::format("{}:{}", file_.string(), line) : file_.string())
        .advise(std::move(advice));
  }
  [[noreturn]] void fail(const char* key, std::string what, std::string advice) const {
    const toml::node* node = table_.get(key);
    fail_line(node ? node->source().begin.line : 0, fmt::format("{}: {}", key, what), std::move(advice));
  }

  void check_known(const std::string& key, const toml::node& node) const {
    if (std::ranges::find(known_keys(), key) != known_keys().end()) return;
    auto near = nearest(key, known_keys());
    fail_line(node.source().begin.line, fmt::format("unknown key '{}'", key),
              near ? fmt::format("did you mean '{}'?", *near) : "known keys are " + join(known_keys(), ", "));
  }

  static std::string type_of(const toml::node& node) {
    switch (node.type()) {
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
    case toml::node_type::floating_point:
      return "a number";
    case toml::node_type::boolean:
      return "a boolean";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::table:
      return "a table";
    default:
      return "a date";
    }
  }

  const toml::node& need(const char* key) const {
    const toml::node* node = table_.get(key);
    if (!node)
      fail_line(0, fmt::format("the key '{}' is missing", key),
                "plugin.toml needs " + join(std::span(known_keys()).first(8), ", "));
    return *node;
  }

  std::string checked(const char* key, const toml::node& node) const {
    const auto* value = node.as_string();
    if (!value)
      fail_line(node.source().begin.line, fmt::format("{}: expected a string but got {}", key, type_of(node)),
                "put it in quotes");
    if (value->get().empty() || value->get().size() > max_text)
      fail_line(node.source().begin.line, fmt::format("{}: {}", key, value->get().empty() ? "is empty" : "is too long"),
                "use a single line of at most 1024 characters");
    const std::string& text = value->get();
    const bool has_control = std::ranges::any_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    // Prose may contain bidirectional marks; printable() removes them where it is stored.
    const bool is_prose = std::string_view(key) == "description" || std::string_view(key) == "license";
    if (has_control || (!is_prose && printable(text + ".") != text + "."))
      fail_line(node.source().begin.line, fmt::format("{}: contains a control character", key),
                "use a single line of at most 1024 characters");
    return value->get();
  }

  std::string text(const char* key) const { return checked(key, need(key)); }

  std::vector<std::string> list(const char* key) const {
    const toml::node& node = need(key);
    const auto* array = node.as_array();
    if (!array)
      fail(key, fmt::format("expected a list of strings but got {}", type_of(node)), "put it in square brackets");
    if (array->empty()) fail(key, "is empty", "list at least one");
    std::vector<std::string> all;
    for (const toml::node& element : *array) {
      all.push_back(checked(key, element));
      if (std::ranges::count(all, all.back()) > 1)
        fail_line(element.source().begin.line, fmt::format("{}: '{}' is listed twice", key, all.back()),
                  "list it once");
    }
    return all;
  }

  void read_abi(Manifest& manifest) const {
    std::string abi = text("abi");
    int end = 0;
    if (std::sscanf(abi.c_str(), "%3d.%3d%n", &manifest.abi_major, &manifest.abi_minor, &end) != 2 ||
        static_cast<size_t>(end) != abi.size() || abi.find_first_not_of("0123456789.") != std::string::npos)
      fail("abi", fmt::format("'{}' is not a version", abi),
           fmt::format("write it like \"{}.{}\"", FVLM_ABI_MAJOR, FVLM_ABI_MINOR));
    if (manifest.abi_major != FVLM_ABI_MAJOR)
      fail("abi", fmt::format("built for ABI {}; this engine supports {}.{}", abi, FVLM_ABI_MAJOR, FVLM_ABI_MINOR),
           manifest.abi_major > FVLM_ABI_MAJOR ? "use a newer fvlm-engine"
                                               : "build the plugin with the headers of this engine");
  }

  void read_kinds(Manifest& manifest) const {
    for (const auto& text : list("kinds")) {
      auto kind = parse_kind(text);
      if (!kind)
        fail("kinds", fmt::format("'{}' is not a kind", text),
             "write it like \"fvlm.attention/1\" or \"fvlm.optimizer/1:adamw\"");
      const Family* family = find_family(kind->family);
      if (!family) {
        manifest.unknown_kinds.push_back(text);
        continue;
      }
      if (family->has_variants && kind->variant.empty())
        fail("kinds", fmt::format("'{}' lacks its variant", text),
             fmt::format("write it like \"{}:NAME\"", family->name));
      if (!family->has_variants && !kind->variant.empty())
        fail("kinds", fmt::format("'{}' has a variant, but {} has none", text, family->label),
             fmt::format("write \"{}\"", family->name));
      manifest.kinds.push_back(*kind);
    }
    if (!manifest.kinds.empty()) return;
    std::vector<std::string> known;
    for (const Family& family : known_families()) known.emplace_back(family.name);
    fail("kinds", fmt::format("this engine supports none of: {}", join(manifest.unknown_kinds, ", ")),
         "it supports " + join(known, ", "));
  }

  fs::path file_;
  toml::table table_;
};

} // namespace

bool Manifest::on_device(std::string_view device) const {
  return std::ranges::find(devices, device) != devices.end();
}

Manifest parse_manifest(std::string_view text, const fs::path& file) {
  return Parser(text, file).run();
}

Manifest read_manifest(const fs::path& file) {
  OpenedFile opened(file);
  if (opened.identity().size > max_bytes)
    throw Error(ErrorKind::plugin, "the manifest has {} bytes; the limit is {}", opened.identity().size, max_bytes)
        .at(file.string());
  return parse_manifest(opened.read(0, max_bytes), file);
}

std::optional<std::string> name_in_manifest(const fs::path& file) {
  try {
    const auto table = toml::parse(OpenedFile(file).read(0, max_bytes), file.string());
    const auto name = table["name"].value<std::string>();
    if (name && is_name(*name)) return name;
  } catch (const std::exception&) { // it has no readable name
  }
  return std::nullopt;
}

Manifest builtin_manifest(std::string name, std::string version, std::string description,
                          const std::vector<std::string>& kinds, std::vector<std::string> devices) {
  Manifest manifest;
  manifest.name = std::move(name);
  manifest.version = std::move(version);
  manifest.description = std::move(description);
  manifest.abi_major = FVLM_ABI_MAJOR;
  manifest.abi_minor = FVLM_ABI_MINOR;
  manifest.devices = std::move(devices);
  for (const auto& text : kinds) {
    auto kind = parse_kind(text);
    if (!kind || !find_family(kind->family)) throw Error(ErrorKind::internal, "'{}' is not a kind", text);
    manifest.kinds.push_back(*kind);
  }
  return manifest;
}

} // namespace fvlm
