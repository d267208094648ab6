// plugin-probe MANIFEST|cpu|cuda LIBRARY: loads a plugin as the engine would and says on descriptor 3 how far it came;
// a device in the manifest's place: there is none. Started by the engine (probe.cpp); whatever the library does to this
// process, the engine lives on.
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

// The plugin has nothing to tell: it may print to 1 and 2, its engine reads 3.
void report(const std::string& line) {
  std::string text = line + "\n";
  if (write(fvlm::probe_report_descriptor, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(1);
}

void refuse(const std::string& what, const std::string& advice) {
  nlohmann::json why = {{"what", what}, {"advice", advice}};
  report("refused " + why.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

} // namespace

int main(int count, char** words) {
  if (count != 3) {
    fmt::print(stderr, "plugin-probe is started by fvlm-engine; `fvlm-engine plugin check FILE` is for people\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // A sanitizer's handlers would turn a signal into an exit code.
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(number, SIG_DFL);
  try {
    const auto notice = [](std::string_view step) { report(fmt::format("step {}", step)); };
    if (const std::string manifest = words[1]; manifest == "cpu" || manifest == "cuda")
      fvlm::open_bare_library(words[2], manifest, notice);
    else
      fvlm::open_plugin(fvlm::read_manifest(manifest), words[2], fvlm::Origin::file, notice);
    report("done");
  } catch (const fvlm::Error& error) {
    refuse(error.what(), error.advice());
  } catch (const std::exception& error) {
    refuse(error.what(), "");
  }
  // The library's destructors are not the engine's business: it never unloads.
  _exit(0);
}
