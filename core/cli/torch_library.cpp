#include "cli/torch_library.h"

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "device/probe.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

namespace fvlm::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view wanted_version = "2.11.";

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

// The python3 of PATH says where its torch lies; find_spec does not import it.
std::string ask_python() {
  FILE* pipe = popen("python3 -c \"import importlib.util as u; s = u.find_spec('torch'); "
                     "print(s.submodule_search_locations[0] if s else '')\" 2>/dev/null",
                     "r");
  if (!pipe) return "";
  char buffer[4096] = "";
  std::string line = std::fgets(buffer, sizeof buffer, pipe) ? buffer : "";
  pclose(pipe);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return line;
}

class Search {
 public:
  // True when `folder` holds the LibTorch we want; else notes why not.
  bool look(const std::string& where, const fs::path& folder) {
    if (folder.empty()) {
      notes_.push_back(where + ": none");
      return false;
    }
    std::error_code ignored;
    if (!fs::exists(folder / "lib" / "libtorch_cpu.so", ignored)) {
      notes_.push_back(fmt::format("{}: no lib/libtorch_cpu.so in {}", where, folder.string()));
      return false;
    }
    std::string version = version_of(folder);
    if (!version.starts_with(wanted_version)) {
      notes_.push_back(fmt::format("{}: {} is torch {}, not {}x", where, folder.string(), version, wanted_version));
      return false;
    }
    found_ = {folder, version};
    return true;
  }
  const TorchLibrary& found() const { return found_; }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  TorchLibrary found_;
  std::vector<std::string> notes_;
};

// The build tree notes the wheel it was built with; an installed tree has no such file.
fs::path noted_by_build() {
  fs::path note = program_folder() / ".." / "lib" / "fvlm" / "torch-folder";
  std::error_code ignored;
  return fs::exists(note, ignored) ? fs::path(read_file(note, 4096)) : fs::path();
}

fs::path in_cache() {
  fs::path lib = cache_folder() / "torch-2.11.0" / "lib";
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(lib, ignored))
    if (entry.path().filename().string().starts_with("python3")) return entry.path() / "site-packages" / "torch";
  return {};
}

} // namespace

TorchLibrary find_torch() {
  Search search;
  if (const char* own = std::getenv("FVLM_TORCH"); own && *own) {
    if (search.look("FVLM_TORCH", own)) return search.found();
  } else if (search.look("the build's own", noted_by_build()) || search.look("the cache", in_cache()) ||
             search.look("python3 of PATH", ask_python())) {
    return search.found();
  }
  throw Error(ErrorKind::device, "LibTorch 2.11 was not found:\n  " + join(search.notes(), "\n  "))
      .advise("run ./scripts/setup, or `pip install torch==2.11.0`, or set FVLM_TORCH to a site-packages/torch folder");
}

namespace {

void load_all(const TorchLibrary& library, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    fs::path path = library.folder / "lib" / name;
    if (!dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL))
      throw Error(ErrorKind::device, fmt::format("LibTorch does not load: {}", dlerror()))
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

void load_torch_cuda_if_there() {
  if (device::probe_cuda().devices.empty()) return;
  try {
    load_torch_cuda(find_torch());
  } catch (const Error&) { // `doctor` tells of it, and whatever wants a tensor
  }
}

} // namespace fvlm::cli
