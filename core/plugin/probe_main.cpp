// plugin-probe MANIFEST|cpu|cuda LIBRARY: loads a plugin as the engine would, and reports its progress on descriptor 3.
// A device in place of the manifest is for a library without one. Started by the engine (probe.cpp), which survives
// whatever the library does to this process.
#include "base/error.h"
#include "plugin/probe.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace {

// The plugin may print to descriptors 1 and 2; the engine reads 3.
void report(const std::string& line) {
  std::string text = line + "\n";
  if (write(fvlm::probe_report_descriptor, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(1);
}

void refuse(const std::string& what, const std::string& advice) {
  nlohmann::json why = {{"what", what}, {"advice", advice}};
  report("refused " + why.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

} // namespace

#if defined(__SANITIZE_ADDRESS__)
extern "C" const char* __asan_default_options() { // a library that is never unloaded keeps what it has
  return "detect_leaks=0";
}
#endif

int main(int count, char** words) {
  if (count != 3) {
    fmt::print(stderr, "plugin-probe is started by fvlm-engine; use `fvlm-engine plugin check FILE` instead\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // A sanitizer's signal handlers would turn a crash into an exit code.
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(number, SIG_DFL);
  try {
    const auto notice = [](std::string_view step) { report(fmt::format("step {}", step)); };
    if (const std::string manifest = words[1]; manifest == "cpu" || manifest == "cuda")
      fvlm::open_bare_library(words[2], manifest, notice);
    else
      fvlm::open_plugin(fvlm::read_manifest(manifest), words[2], fvlm::Origin::file, notice);
    report("done");
    // The engine's process, which never unloads a library, runs them at its end as well.
    report("step the exit of the process, after all calls");
    std::exit(0);
  } catch (const fvlm::Error& error) {
    refuse(error.what(), error.advice());
  } catch (const std::exception& error) {
    refuse(error.what(), "");
  }
  _exit(0);
}
