// rank_probe RECIPE DATA RUN TIMEOUT RANK WHERE HOW ZERO: trains as one of the ranks that the environment tells of.
// Rank RANK fails once, when a launcher starts it first: at WHERE (setup; data, pack, step, checkpoint or writing, of
// its third step; evaluation, the first one), HOW (throw, hang, stop, kill, exit; drop-store and drop-ranks lose the
// connections to the store, and to the other ranks). With WHERE "memory", a pass of that rank has HOW more bytes for
// its tensors.
#include "base/error.h"
#include "dist/ranks.h"
#include "ops/reference.h"
#include "ops/reference_manifest.h"
#include "train/run.h"
#include "train/tensor_memory.h"

#include <ATen/Parallel.h>

#include <arpa/inet.h>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

using namespace fvlm;

namespace {

uint16_t port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

// As where a network goes down: connections to the store, or all others over TCP.
void drop_connections(bool of_store) {
  const auto store = static_cast<uint16_t>(std::stoi(std::getenv("MASTER_PORT")));
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    sockaddr_storage peer{}, own{};
    socklen_t size = sizeof peer, own_size = sizeof own;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || port_of(peer) == 0) continue;
    getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size);
    if ((port_of(peer) == store || port_of(own) == store) == of_store) shutdown(fd, SHUT_RDWR);
  }
}

// Nobody else can say where a rank was that is killed or stopped but its heartbeats, more than two a second.
void wait_for_heartbeats(const std::string& how) {
  if (how == "kill" || how == "stop") std::this_thread::sleep_for(std::chrono::seconds(1));
}

void fail(const std::string& how) {
  if (how.starts_with("drop-")) return drop_connections(how == "drop-store");
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
  const bool fails = std::stoll(words[4]) == launch->rank && launch->attempt == 0;
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
      if (where == "pack" && step == 2) wait_for_heartbeats(how), fail(how);
    };
    request.faults.before_step = [&](const std::string&, int64_t step, model::Parameters&) {
      if (where == "step" && step == 2) wait_for_heartbeats(how), fail(how);
    };
    request.faults.before_checkpoint = [&](const std::string&, int64_t step) {
      if (where == "writing" && step == 3)
        wait_for_heartbeats(how); // the main thread, which goes on while another one writes
      if (where == "checkpoint" && step == 3) fail(how);
    };
    request.faults.before_part = [&, failed = false](int64_t step) mutable {
      if (where == "writing" && step == 3 && !std::exchange(failed, true)) fail(how);
    };
    request.faults.before_evaluation = [&](const std::string&, int64_t) {
      if (where == "evaluation") wait_for_heartbeats(how), fail(how);
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
