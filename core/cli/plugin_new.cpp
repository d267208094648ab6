// fvlm-engine plugin new: creates a plugin from a template.
#include "base/error.h"
#include "base/file.h"
#include "base/new_file.h"
#include "base/text.h"
#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

namespace fvlm::cli {
namespace {

namespace fs = std::filesystem;

// The build tree has the same layout of headers, packages and templates as an install tree.
fs::path find_prefix() {
  fs::path prefix = fs::weakly_canonical(program_folder() / "..");
  if (!fs::exists(prefix / "share/fvlm/template") || !fs::exists(prefix / "include/fvlm/abi.h"))
    throw Error(ErrorKind::plugin, "the SDK's templates and headers are not beside this program")
        .at(prefix.string())
        .advise(
            "run the fvlm-engine of an install tree or of a build tree: share/fvlm/template and include/fvlm belong "
            "to it");
  return prefix;
}

std::vector<std::string> folders_of(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory() && entry.path().filename() != "common") names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

void check_name(const std::string& name) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; };
  const bool letter_first = !name.empty() && name[0] >= 'a' && name[0] <= 'z';
  if (!letter_first || name.size() > 64 || !std::ranges::all_of(name, allowed))
    throw Error(ErrorKind::usage, "'{}' cannot be a plugin's name", name)
        .advise("a lower-case letter, then lower-case letters, digits, '-' and '_', 64 at most");
  if (name == "reference" || name == "auto")
    throw Error(ErrorKind::usage, "'{}' is reserved: it has another meaning in a recipe", name)
        .advise("choose another");
}

std::string pick(const std::string& what, const std::string& asked, const std::vector<std::string>& known) {
  if (std::ranges::find(known, asked) != known.end()) return asked;
  Error error(ErrorKind::usage, "no {} '{}'", what, asked);
  if (auto near = nearest(asked, known)) throw error.advise("did you mean '{}'?", *near);
  throw error.advise("use " + join_or(known));
}

std::string fill_in(std::string text, const std::map<std::string, std::string>& values) {
  for (const auto& [key, value] : values) {
    for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + value.size()))
      text.replace(at, key.size(), value);
  }
  return text;
}

// The engine refuses plugins that others can write, so this removes their permission whatever the umask is.
void forbid_writes_by_others(const fs::path& path) {
  fs::permissions(path, fs::perms::group_write | fs::perms::others_write, fs::perm_options::remove);
}

// Ordered as a newcomer should read them.
std::vector<fs::path> template_files(const fs::path& templates, const std::string& kind, const std::string& lang) {
  std::vector<fs::path> files;
  for (const fs::path& folder : {templates / kind / lang, templates / "common" / lang, templates / "common"})
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.is_regular_file()) files.push_back(entry.path());
  return files;
}

} // namespace

int run_plugin_new(Arguments arguments) {
  Options options("plugin new KIND NAME [--lang c|cpp|cuda|rust|zig] [--dir D]",
                  "Create a plugin from a template: it builds, works and passes `plugin check`.",
                  "plugin new attention attention-mine --lang cpp");
  options.positional("KIND", "attention, kernels, loss, optimizer, packer, quantizer or video")
      .choices("attention|kernels|loss|optimizer|packer|quantizer|video")
      .positional("NAME", "the plugin's name in recipes; by convention KIND-SOMETHING")
      .value("lang", "c|cpp|cuda|rust|zig", "the language; default c. rust and zig: of the kind kernels")
      .value("dir", "D", "the folder to create; default: NAME in the current folder");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;

  const fs::path prefix = find_prefix(), templates = prefix / "share/fvlm/template";
  const std::string kind = pick("kind", *parsed->value("KIND"), folders_of(templates));
  const std::string name = *parsed->value("NAME");
  const std::string lang = pick("language", parsed->value_or("lang", "c"), folders_of(templates / "common"));
  check_name(name);
  if (!fs::exists(templates / kind / lang))
    throw Error(ErrorKind::usage, "there is no template of the kind {} in {}", kind, lang)
        .advise("{}use --lang {}", lang == "cuda" ? fmt::format("a {} runs on the host only: ", kind) : "",
                join_or(folders_of(templates / kind)));

  const fs::path folder = parsed->value_or("dir", name);
  if (fs::exists(fs::symlink_status(folder)))
    throw Error(ErrorKind::usage, "the path already exists").at(folder.string()).advise("choose another --dir");

  std::map<std::string, std::string> values = {
      {"@NAME@", name}, {"@LABEL@", kind == "kernels" ? "swiglu" : kind}, {"@SDK@", prefix.string()}};
  const std::vector<fs::path> files = template_files(templates, kind, lang);
  for (const fs::path& file : files)
    if (file.stem() == "plugin" && file.extension() != ".toml") values["@SOURCE@"] = file.filename().string();
  try {
    make_folders(folder);
    forbid_writes_by_others(folder);
    for (const fs::path& file : files) {
      write_file_atomic(folder / file.filename(), fill_in(read_file(file), values));
      forbid_writes_by_others(folder / file.filename());
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::output, error.code().message()).at(folder.string());
  }

  fmt::print("{}: {} in {}\n\n", folder.string(), kind, lang);
  fmt::print("  cd {}\n  make\n  fvlm-engine plugin check .\n  fvlm-engine plugin list --plugin-dir ..\n",
             folder.string());
  return 0;
}

} // namespace fvlm::cli
