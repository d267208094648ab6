#include "dist/nccl_library.h"

#include "base/error.h"

#include <fmt/format.h>

#include <dlfcn.h>

namespace fvlm::dist::nccl {
namespace {

constexpr const char* name = "libnccl.so.2";

Library load() {
  void* handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL); // LibTorch's, which is loaded already
  const char* problem = handle ? nullptr : dlerror();
  Library library{};
  const auto find = [&](auto& function, const char* symbol) {
    if (problem) return;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, symbol));
    if (!function) problem = symbol;
  };
  find(library.get_version, "ncclGetVersion");
  find(library.get_unique_id, "ncclGetUniqueId");
  find(library.init_rank, "ncclCommInitRank");
  find(library.abort, "ncclCommAbort");
  find(library.error_string, "ncclGetErrorString");
  find(library.group_start, "ncclGroupStart");
  find(library.group_end, "ncclGroupEnd");
  find(library.all_reduce, "ncclAllReduce");
  find(library.broadcast, "ncclBroadcast");
  find(library.reduce_scatter, "ncclReduceScatter");
  find(library.all_gather, "ncclAllGather");
  find(library.reduce, "ncclReduce");
  find(library.send, "ncclSend");
  find(library.receive, "ncclRecv");
  if (problem)
    throw Error(ErrorKind::device, "cannot load NCCL: {}", problem)
        .at(name)
        .advise("reinstall torch 2.11 with its dependencies (`pip install torch==2.11.0`), or run ./scripts/setup");
  return library;
}

} // namespace

void Library::check(int result, const char* what) const {
  if (result != 0) throw Error(ErrorKind::device, "NCCL: {}: {}", what, error_string(result));
}

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

std::string version() {
  int number = 0;
  library().check(library().get_version(&number), "asking for its version");
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

} // namespace fvlm::dist::nccl
