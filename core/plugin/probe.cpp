#include "plugin/probe.h"

#include "base/child_process.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/new_file.h"
#include "base/text.h"
#include "plugin/elf.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Verdict {
  bool good = false;
  bool is_cacheable = true; // false for a refusal that a change elsewhere could remove, such as a missing dependency
  std::string reason, advice;
};

// The folders of this process's own libraries, except the system's. The child searches them as well, so that a plugin
// with a dependency that the engine has loaded already (such as the CUDA runtime) is not refused.
std::string library_folders() {
  std::vector<std::string> folders;
  auto add = [](dl_phdr_info* info, size_t, void* into) {
    std::string name = info->dlpi_name ? info->dlpi_name : "";
    size_t slash = name.rfind('/');
    if (name.empty() || name[0] != '/' || slash == 0) return 0;
    std::string folder = name.substr(0, slash);
    for (const char* system : {"/lib", "/usr/lib"})
      if (folder.starts_with(system)) return 0;
    auto& all = *static_cast<std::vector<std::string>*>(into);
    if (std::ranges::find(all, folder) == all.end()) all.push_back(folder);
    return 0;
  };
  dl_iterate_phdr(add, &folders);
  return join(folders, ":");
}

std::vector<std::string> child_environment() {
  constexpr std::string_view key = "LD_LIBRARY_PATH=";
  std::vector<std::string> all;
  std::string path = library_folders();
  for (std::string& text : current_environment()) {
    if (!text.starts_with(key))
      all.push_back(std::move(text));
    else if (text.size() > key.size())
      path.insert(0, text.substr(key.size()) + (path.empty() ? "" : ":"));
  }
  if (!path.empty()) all.push_back(std::string(key) + path);
  return all;
}

Verdict judge(const std::string& report, const std::string& output, bool ended, int status,
              std::chrono::milliseconds limit) {
  Verdict verdict;
  std::string step = "the start";
  bool done = false;
  for (const auto& line : split(report, '\n')) {
    if (line.starts_with("step ")) step = printable(line.substr(5));
    if (line == "done") done = true;
    if (line.starts_with("refused ")) {
      auto why = Json::parse(line.substr(8), nullptr, false);
      verdict.is_cacheable = false;
      verdict.reason = why.is_object() ? printable(why.value("what", "")) : "refused";
      verdict.advice = why.is_object() ? printable(why.value("advice", "")) : "";
      return verdict;
    }
  }
  verdict.advice = "this happened in a trial load in a separate process; correct and rebuild the plugin";
  if (!ended)
    verdict.reason =
        fmt::format("it did not return from {} within {:.3g} s", step, static_cast<double>(limit.count()) / 1000);
  else if (WIFSIGNALED(status))
    verdict.reason = fmt::format("it crashed with {} in {}", signal_name(WTERMSIG(status)), step);
  else if (!done || WEXITSTATUS(status) != 0)
    verdict.reason = fmt::format("it ended the process with exit code {} in {}", WEXITSTATUS(status), step);
  else
    return {true, true, "", ""};
  if (const std::string said = last_output(output); !said.empty())
    verdict.reason += fmt::format(" (its output: {})", said);
  return verdict;
}

// `manifest`: its path; "cpu" or "cuda" for a library without one.
Verdict run_child(const fs::path& program, const std::string& manifest, const OpenedFile& library,
                  std::chrono::milliseconds limit) try {
  constexpr size_t max_kept = 16 << 10;
  Pipe report, output;
  std::string reported, printed;
  ChildProcess child({.command = {program.string(), manifest, library.content().string()},
                      .descriptors = {{output.writer().get(), STDOUT_FILENO},
                                      {output.writer().get(), STDERR_FILENO},
                                      {report.writer().get(), probe_report_descriptor}},
                      .environment = child_environment()});
  report.close_writer();
  output.close_writer();
  auto deadline = Clock::now() + limit;
  bool ended = false;
  while (!ended && Clock::now() < deadline) {
    wait_for_output({&report, &output}, deadline);
    ended = child.has_ended();
    report.drain(reported);
    output.drain(printed);
    if (printed.size() > max_kept) printed.erase(0, printed.size() - max_kept);
    if (reported.size() > max_kept) break;
  }
  return judge(reported, printed, ended, child.status(), limit);
} catch (const Error& error) { // of the pipes or the start
  throw Error(ErrorKind::plugin, error.what()).at(error.where()).advise("install both bin and lib of fvlm-engine");
}

Json identity_json(const FileIdentity& identity) {
  return Json::array({identity.device, identity.inode, identity.size, identity.modified_ns, identity.changed_ns});
}

// A cache of verdicts, one small file for each library in the cache folder. A verdict belongs to a content, by its
// hash. A file that is missing, truncated or of another version is ignored.
class VerdictCache {
 public:
  VerdictCache(const OpenedFile& library, const ProbeOptions& options) : library_(library) {
    const std::string name = sha256_hex(library.path().string()).substr(0, 24) + ".json";
    try {
      file_ = (options.memory.empty() ? cache_folder() / "plugins" : options.memory) / name;
    } catch (const Error& error) { // then every process loads the library in a child
      log_debug("{}", error.text());
    }
  }

  std::optional<Json> load() const {
    std::error_code ignored;
    if (!fs::is_regular_file(file_, ignored)) return std::nullopt;
    try {
      auto known = Json::parse(read_file(file_, 1 << 16));
      if (known.at("library") == library_.path().string() && known.at("sha256").is_string() &&
          known.at("good").is_boolean() && known.at("reason").is_string())
        return known;
    } catch (const std::exception& error) {
      log_debug("{}: not a valid verdict: {}", file_.string(), error.what());
    }
    return std::nullopt;
  }

  void store(const Verdict& verdict, const std::string& sha256, const Json& program) const {
    if (file_.empty()) return;
    Json known = {{"library", library_.path().string()},
                  {"identity", identity_json(library_.identity())},
                  {"sha256", sha256},
                  {"program", program},
                  {"good", verdict.good},
                  {"reason", verdict.reason},
                  {"advice", verdict.advice}};
    try {
      make_folders(file_.parent_path());
      write_file_atomic(file_, known.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    } catch (const std::exception& error) {
      log_debug("cannot cache the verdict on {}: {}", library_.path().string(), error.what());
    }
  }

 private:
  const OpenedFile& library_;
  fs::path file_;
};

fs::path program_of(const ProbeOptions& options) {
  fs::path program =
      options.program.empty() ? program_folder() / ".." / "lib" / "fvlm" / "plugin-probe" : options.program;
  if (std::error_code ignored; !fs::exists(program, ignored))
    throw Error(ErrorKind::plugin, "the program for trial loads of plugins is missing")
        .at(program.string())
        .advise("install both bin and lib of fvlm-engine");
  return program;
}

[[noreturn]] void refuse(const OpenedFile& library, const std::string& reason, const std::string& advice) {
  throw Error(ErrorKind::plugin, reason).at(library.path().string()).advise(advice);
}

} // namespace

void probe_library(const Manifest& manifest, const OpenedFile& library, const std::string& sha256,
                   const ProbeOptions& options) {
  using When = ProbeOptions::When;
  if (options.when == When::never) return;
  const fs::path program = program_of(options);
  Json program_identity = identity_json(OpenedFile(program).identity());
  VerdictCache cache(library, options);
  if (auto known = options.when == When::always ? std::nullopt : cache.load();
      known && known->value("program", Json()) == program_identity && known->value("sha256", std::string()) == sha256) {
    if (known->value("good", false)) return;
    if (options.when == When::cached)
      refuse(library, known->value("reason", "it failed before"),
             "this is the cached result of an earlier trial load; `fvlm-engine plugin list` repeats it");
  }
  Verdict verdict = run_child(program, manifest.file.string(), library, options.limit);
  library.verify_unchanged();
  if (verdict.is_cacheable) cache.store(verdict, sha256, program_identity);
  if (!verdict.good) refuse(library, verdict.reason, verdict.advice);
}

std::string trial_load_refusal(const fs::path& library, const std::optional<Manifest>& manifest,
                               const std::string& device, const ProbeOptions& options) {
  try {
    const OpenedFile file(library);
    check_elf(file);
    const Verdict verdict =
        run_child(program_of(options), manifest ? manifest->file.string() : device, file, options.limit);
    if (verdict.good) return "";
    return verdict.advice.empty() ? verdict.reason : fmt::format("{} ({})", verdict.reason, verdict.advice);
  } catch (const Error& error) {
    return error.advice().empty() ? error.what() : fmt::format("{} ({})", error.what(), error.advice());
  }
}

std::string cached_sha256(const OpenedFile& library, const ProbeOptions& options) {
  if (auto known = VerdictCache(library, options).load())
    if (known->value("identity", Json()) == identity_json(library.identity())) return known->at("sha256");
  return library.sha256();
}

} // namespace fvlm
