#include "cli/torch_library.h"

#include "base/child_process.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "device/probe.h"
#include "plugin/trust.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <dlfcn.h>
#include <unistd.h>

namespace fvlm::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view required_version = "2.11.";

// torch/version.py holds a line: __version__ = '2.11.0+cu130'
std::string version_of(const fs::path& folder) {
  std::string text = read_file(folder / "version.py", 1 << 16);
  size_t key = text.find("\n__version__ = ");
  if (key == std::string::npos) return "";
  size_t open = text.find_first_of("'\"", key);
  if (open == std::string::npos) return "";
  size_t close = text.find(text[open], open + 1);
  return close == std::string::npos ? "" : text.substr(open + 1, close - open - 1);
}

// The first python3 on PATH. Relative entries are skipped, because they would lead into the working folder.
fs::path python_of_path() {
  const char* path = std::getenv("PATH");
  for (const auto& folder : split(path ? path : "", ':')) {
    if (!folder.starts_with('/')) continue;
    const fs::path python = fs::path(folder) / "python3";
    if (access(python.c_str(), X_OK) == 0 && !fs::is_directory(python)) return python;
  }
  return {};
}

// The Python whose environment the program was installed into, as pip installs the wheel.
fs::path python_of_environment() {
  const fs::path python = program_folder() / "python3";
  std::error_code ignored;
  return fs::exists(python, ignored) ? python : fs::path();
}

// Prints the folder of the torch package. find_spec does not import it. Python runs isolated (-I), so that neither the
// working folder nor PYTHONPATH adds modules; of what -I excludes, only the user's site-packages are searched.
constexpr const char* where_is_torch = R"(
import importlib.util, site, sys
found = importlib.util.find_spec('torch')
if not found:
    sys.path.append(site.getusersitepackages())
    found = importlib.util.find_spec('torch')
print(found.submodule_search_locations[0] if found else '')
)";

// The first line that the program prints, or nothing where it does not start. It runs in /, without standard input and
// standard error.
std::string first_line_of(const fs::path& program, std::vector<std::string> words) {
  words.insert(words.begin(), program.string());
  try {
    Pipe output;
    ChildProcess child({.command = std::move(words),
                        .descriptors = {{output.writer().get(), STDOUT_FILENO}, {-1, STDERR_FILENO}},
                        .folder = "/"});
    output.close_writer();
    std::string said;
    while (output.reader()) {
      wait_for_output({&output}, std::chrono::steady_clock::time_point::max());
      output.drain(said);
    }
    return trimmed(said.substr(0, said.find('\n')));
  } catch (const Error&) {
    return "";
  }
}

fs::path torch_of(const fs::path& python) {
  return first_line_of(python, {"-I", "-c", where_is_torch});
}

// Throws Error(plugin) where anybody but root, the user and the program's owner could change what will be loaded: the
// folder, its libraries, and the folders beside it with the CUDA libraries they depend on.
void check_not_changed_by_others(const fs::path& folder) {
  TrustPolicy policy;
  policy.also_owner_of = program_folder();
  check_trusted_folder(folder / "lib", policy);
  for (const char* name : {"libc10.so", "libtorch_cpu.so", "libc10_cuda.so", "libtorch_cuda.so"})
    if (fs::exists(folder / "lib" / name)) check_trusted(folder / "lib" / name, policy);
  std::error_code none;
  for (const auto& brought : fs::directory_iterator(folder.parent_path() / "nvidia", none))
    if (fs::is_directory(brought.path() / "lib")) check_trusted_folder(brought.path() / "lib", policy);
}

class Search {
 public:
  // Whether `folder` holds a LibTorch of the required version. Otherwise notes why it does not.
  bool try_folder(const std::string& where, const fs::path& folder) {
    if (folder.empty()) {
      notes_.push_back(where + ": none");
      return false;
    }
    try {
      return is_usable(where, folder);
    } catch (const Error& error) {
      refuse(fmt::format("{}: {}: {}", where, error.where(), error.what()));
      advice_ = error.advice();
    }
    return false;
  }
  const TorchLibrary& found() const { return found_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::string& advice() const {
    return advice_;
  } // how to fix the last folder that others could change; may be empty

 private:
  bool is_usable(const std::string& where, const fs::path& folder) {
    std::error_code ignored;
    if (!fs::exists(folder / "lib" / "libtorch_cpu.so", ignored)) {
      notes_.push_back(fmt::format("{}: no lib/libtorch_cpu.so in {}", where, folder.string()));
      return false;
    }
    check_not_changed_by_others(folder);
    const std::string version = version_of(folder);
    if (!version.starts_with(required_version)) {
      refuse(fmt::format("{}: {} is torch {}, not {}x", where, folder.string(), version, required_version));
      return false;
    }
    found_.folder = folder;
    found_.version = version;
    found_.found_by = where;
    return true;
  }

  void refuse(const std::string& note) {
    notes_.push_back(note);
    found_.passed_over.push_back(note);
  }

  TorchLibrary found_;
  std::vector<std::string> notes_;
  std::string advice_;
};

// The build tree records the torch package it was built with. An install tree has no such file.
fs::path recorded_by_build() {
  fs::path note = program_folder() / ".." / "lib" / "fvlm" / "torch-folder";
  std::error_code ignored;
  return fs::exists(note, ignored) ? fs::path(read_file(note, 4096)) : fs::path();
}

fs::path cached_torch() {
  std::error_code ignored;
  fs::path lib;
  try {
    lib = cache_folder() / "torch-2.11.0" / "lib";
  } catch (const Error&) { // this user has no cache folder
    return {};
  }
  for (const auto& entry : fs::directory_iterator(lib, ignored))
    if (entry.path().filename().string().starts_with("python3")) return entry.path() / "site-packages" / "torch";
  return {};
}

} // namespace

TorchLibrary find_torch() {
  Search search;
  if (const char* own = std::getenv("FVLM_TORCH"); own && *own) {
    if (search.try_folder("FVLM_TORCH", own)) return search.found();
  } else {
    if (search.try_folder("the build tree", recorded_by_build())) return search.found();
    const fs::path environment = python_of_environment(), python = python_of_path();
    if (!environment.empty() && search.try_folder(environment.string(), torch_of(environment))) return search.found();
    if (search.try_folder("the cache", cached_torch())) return search.found();
    const std::string where = python.empty() ? "python3 of PATH" : python.string();
    if (search.try_folder(where, python.empty() ? "" : torch_of(python))) return search.found();
  }
  Error error(ErrorKind::device, "LibTorch 2.11 was not found:\n  " + join(search.notes(), "\n  "));
  if (!search.advice().empty()) throw error.advise(search.advice());
  throw error.advise(
      "run ./scripts/setup, or `pip install torch==2.11.0`, or set FVLM_TORCH to a site-packages/torch folder");
}

namespace {

void load_all(const TorchLibrary& library, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    fs::path path = library.folder / "lib" / name;
    if (!dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL))
      throw Error(ErrorKind::device, "cannot load LibTorch: {}", dlerror())
          .at(path.string())
          .advise("reinstall torch 2.11 with its dependencies (`pip install torch==2.11.0`), or run ./scripts/setup");
  }
}

} // namespace

void load_torch(const TorchLibrary& library) {
  load_all(library, {"libc10.so", "libtorch_cpu.so"});
}

void load_torch_cuda(const TorchLibrary& library) {
  load_all(library, {"libc10_cuda.so", "libtorch_cuda.so"});
}

void load_torch_cuda_if_available() {
  if (device::probe_cuda().devices.empty()) return;
  try {
    load_torch_cuda(find_torch());
  } catch (const Error&) { // reported by `doctor` and by the first use of a tensor
  }
}

} // namespace fvlm::cli
