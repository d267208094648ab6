// rank_probe RECIPE DATA RUN TIMEOUT RANK WHERE HOW ZERO: trains as one of the ranks that the environment tells of.
// Rank RANK fails in its third step: at WHERE (setup, data, pack or step), HOW (throw, hang, stop, kill or exit). With
// WHERE "memory", a pass of that rank has HOW more bytes for its tensors.
#include "base/error.h"
#include "dist/ranks.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"
#include "train/run.h"
#include "train/tensor_memory.h"

#include <ATen/Parallel.h>

#include <csignal>
#include <cstdio>
#include <thread>
#include <unistd.h>

using namespace fvlm;

namespace {

void fail(const std::string& how) {
  if (how == "throw") throw Error(ErrorKind::internal, "as the test wants it");
  if (how == "exit") _exit(9);
  if (how == "kill") raise(SIGKILL);
  if (how == "stop") raise(SIGSTOP);
  while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
}

int run(const std::vector<std::string>& words) {
  at::set_num_threads(1);
  recipe::Request wanted;
  wanted.file = words[0];
  wanted.args = {{"data", words[1]}};
  const auto resolved = recipe::resolve(wanted);
  Registry registry(RegistryOptions{});
  registry.add_static(ops::reference_manifest(), [] { return &ops::reference_entry; });

  const auto launch = dist::launch_of_environment();
  if (!launch) throw Error(ErrorKind::usage, "the probe is one of several ranks");
  const auto ranks = dist::Ranks::join(*launch, at::kCPU, std::chrono::milliseconds(std::stoll(words[3])));
  const std::string &where = words[5], how = words[6];
  const bool fails = std::stoll(words[4]) == launch->rank;
  train::TrainRequest request;
  request.folder = words[2];
  request.ranks = ranks.get();
  request.zero = std::stoll(words[7]);
  int64_t packs = 0;
  train::TensorMemory memory;
  bool is_limited = false;
  if (fails && where == "memory") {
    request.faults.before_pack = [&](const std::string&, int64_t step, HostPack& pack) {
      const bool limits = !is_limited && step >= 2 && pack.samples.size() > 1;
      memory.limit_to(limits ? memory.live() + std::stoll(how) : 0);
      is_limited = is_limited || limits;
    };
  } else if (fails) {
    request.faults.before_data = [&] {
      if (where == "data" && packs == 2) fail(how);
    };
    request.faults.before_pack = [&](const std::string&, int64_t step, HostPack&) {
      ++packs;
      if (where == "pack" && step == 2) fail(how);
    };
    request.faults.before_step = [&](const std::string&, int64_t step, model::Parameters&) {
      if (where == "step" && step == 2) fail(how);
    };
  }
  if (fails && where == "setup") fail(how);
  train::train(resolved, request, registry);
  return 0;
}

} // namespace

int main(int count, char** words) {
  try {
    return count == 9 ? run({words + 1, words + count}) : 2;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
