#include "plugin/probe.h"

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
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fvlm {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Verdict {
  bool good = false;
  bool lasting = true; // worth remembering: what a change elsewhere (a missing dependency) could mend is not
  std::string reason, advice;
};

class Pipe {
 public:
  Pipe() {
    // Above the descriptors that the child's own will be, which are free where the engine runs without a terminal.
    constexpr int least = probe_report_descriptor + 1;
    int low[2] = {-1, -1};
    bool made = pipe2(low, O_CLOEXEC) == 0;
    for (int i = 0; made && i < 2; ++i) ends_[i] = fcntl(low[i], F_DUPFD_CLOEXEC, least);
    int error = errno;
    for (int& end : low) close_end(end);
    if (ends_[0] >= 0 && ends_[1] >= 0) return;
    close_reader();
    close_writer();
    throw Error(ErrorKind::plugin, fmt::format("cannot make a pipe: {}", std::strerror(error)));
  }
  ~Pipe() {
    close_reader();
    close_writer();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int reader() const { return ends_[0]; }
  int writer() const { return ends_[1]; }
  void close_writer() { close_end(ends_[1]); }
  void close_reader() { close_end(ends_[0]); }

  // Appends what is there; closes the reader at the end of the file.
  void drain(std::string& into) {
    std::array<char, 4096> buffer;
    while (ends_[0] >= 0) {
      pollfd ready{ends_[0], POLLIN, 0};
      if (poll(&ready, 1, 0) <= 0) return;
      ssize_t n = ::read(ends_[0], buffer.data(), buffer.size());
      if (n > 0)
        into.append(buffer.data(), static_cast<size_t>(n));
      else if (n == 0 || errno != EINTR)
        close_reader();
    }
  }

 private:
  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
  int ends_[2] = {-1, -1};
};

// Folders from which this process took its own libraries, those of the system left out. The child looks there too, so
// that a plugin that wants what the engine already has (CUDA's runtime, say) is not refused for want of it.
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
    if (std::find(all.begin(), all.end(), folder) == all.end()) all.push_back(folder);
    return 0;
  };
  dl_iterate_phdr(add, &folders);
  return join(folders, ":");
}

std::vector<std::string> child_environment() {
  constexpr std::string_view key = "LD_LIBRARY_PATH=";
  std::vector<std::string> all;
  std::string path = library_folders();
  for (char** variable = environ; *variable; ++variable) {
    std::string_view text = *variable;
    if (!text.starts_with(key))
      all.emplace_back(text);
    else if (text.size() > key.size())
      path.insert(0, std::string(text.substr(key.size())) + (path.empty() ? "" : ":"));
  }
  if (!path.empty()) all.push_back(std::string(key) + path);
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  all.reserve(words.size());
  for (auto& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

// The child, and whatever it started: they form a process group that ends with this object.
class Child {
 public:
  Child(std::vector<std::string> words, const Pipe& report, const Pipe& output) {
    auto environment = child_environment();
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output.writer(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output.writer(), STDERR_FILENO);
    posix_spawn_file_actions_adddup2(&actions, report.writer(), probe_report_descriptor);
    posix_spawn_file_actions_addclosefrom_np(&actions, probe_report_descriptor + 1);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes, 0);
    int error = posix_spawn(&pid_, words[0].c_str(), &actions, &attributes, pointers(words).data(),
                            pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0)
      throw Error(ErrorKind::plugin,
                  fmt::format("the program that tries plugins out does not start: {}", std::strerror(error)))
          .at(words[0])
          .advise("install fvlm-engine whole: bin and lib belong together");
  }
  ~Child() {
    kill(-pid_, SIGKILL);
    if (!ended_) waitpid(pid_, &status_, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool ended() {
    if (!ended_) ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
    return ended_;
  }
  int status() const { return status_; }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

std::string signal_name(int number) {
  const char* name = sigabbrev_np(number);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
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
      verdict.lasting = false;
      verdict.reason = why.is_object() ? printable(why.value("what", "")) : "refused";
      verdict.advice = why.is_object() ? printable(why.value("advice", "")) : "";
      return verdict;
    }
  }
  verdict.advice = "it was tried out in a process of its own; mend the plugin and build it again";
  if (!ended)
    verdict.reason =
        fmt::format("it did not come back from {} within {:.3g} s", step, static_cast<double>(limit.count()) / 1000);
  else if (WIFSIGNALED(status))
    verdict.reason = fmt::format("it crashed with {} in {}", signal_name(WTERMSIG(status)), step);
  else if (!done || WEXITSTATUS(status) != 0)
    verdict.reason = fmt::format("it ended the process with exit code {} in {}", WEXITSTATUS(status), step);
  else
    return {true, true, "", ""};
  if (const std::string said = last_words(output); !said.empty()) verdict.reason += fmt::format(" (it said: {})", said);
  return verdict;
}

// `manifest`: its file, or cpu or cuda for a library that has none.
Verdict run_child(const fs::path& program, const std::string& manifest, const OpenedFile& library,
                  std::chrono::milliseconds limit) {
  constexpr size_t most_kept = 16 << 10;
  Pipe report, output;
  std::string reported, printed;
  Child child({program.string(), manifest, library.content().string()}, report, output);
  report.close_writer();
  output.close_writer();
  auto deadline = Clock::now() + limit;
  bool ended = false;
  while (!ended && Clock::now() < deadline) {
    // Woken by either pipe; the time is for a child whose own children keep them open.
    pollfd ready[2] = {{report.reader(), POLLIN, 0}, {output.reader(), POLLIN, 0}};
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    bool both_closed = report.reader() < 0 && output.reader() < 0;
    poll(ready, 2, static_cast<int>(std::clamp<int64_t>(left, 0, both_closed ? 1 : 50)));
    ended = child.ended();
    report.drain(reported);
    output.drain(printed);
    if (printed.size() > most_kept) printed.erase(0, printed.size() - most_kept);
    if (reported.size() > most_kept) break;
  }
  return judge(reported, printed, ended, child.status(), limit);
}

Json identity_json(const FileIdentity& identity) {
  return Json::array({identity.device, identity.inode, identity.size, identity.modified_ns, identity.changed_ns});
}

// One small file a library in the cache folder, where there is one: what is remembered is of a content, by its hash. A
// file that is missing, torn or of another version is no memory.
class Memory {
 public:
  Memory(const OpenedFile& library, const ProbeOptions& options) : library_(library) {
    const std::string name = sha256_hex(library.path().string()).substr(0, 24) + ".json";
    try {
      file_ = (options.memory.empty() ? cache_folder() / "plugins" : options.memory) / name;
    } catch (const Error& error) { // then each process tries the library anew
      log_debug("{}", error.text());
    }
  }

  std::optional<Json> recall() const {
    std::error_code ignored;
    if (!fs::is_regular_file(file_, ignored)) return std::nullopt;
    try {
      auto known = Json::parse(read_file(file_, 1 << 16));
      if (known.at("library") == library_.path().string() && known.at("sha256").is_string() &&
          known.at("good").is_boolean() && known.at("reason").is_string())
        return known;
    } catch (const std::exception& error) {
      log_debug("{}: not a verdict that can be used: {}", file_.string(), error.what());
    }
    return std::nullopt;
  }

  void keep(const Verdict& verdict, const std::string& sha256, const Json& program) const {
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
      log_debug("the verdict on {} is not kept: {}", library_.path().string(), error.what());
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
    throw Error(ErrorKind::plugin, "the program that tries plugins out is missing")
        .at(program.string())
        .advise("install fvlm-engine whole: bin and lib belong together");
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
  Memory memory(library, options);
  if (auto known = options.when == When::always ? std::nullopt : memory.recall();
      known && known->value("program", Json()) == program_identity && known->value("sha256", std::string()) == sha256) {
    if (known->value("good", false)) return;
    if (options.when == When::remembered)
      refuse(library, known->value("reason", "it failed before"),
             "this was found when it was last tried out; `fvlm-engine plugin list` tries it again");
  }
  Verdict verdict = run_child(program, manifest.file.string(), library, options.limit);
  library.verify_unchanged();
  if (verdict.lasting) memory.keep(verdict, sha256, program_identity);
  if (!verdict.good) refuse(library, verdict.reason, verdict.advice);
}

std::string loader_refusal(const fs::path& library, const std::optional<Manifest>& manifest, const std::string& device,
                           const ProbeOptions& options) {
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

std::string remembered_sha256(const OpenedFile& library, const ProbeOptions& options) {
  if (auto known = Memory(library, options).recall())
    if (known->value("identity", Json()) == identity_json(library.identity())) return known->at("sha256");
  return library.sha256();
}

} // namespace fvlm
