#include "dist/rendezvous.h"

#include "base/error.h"
#include "base/text.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <limits>

namespace fvlm::dist {
namespace {

constexpr int64_t first_port = 29500, ports = 1000; // of Slurm's jobs, which say none

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

int64_t number(const char* name, int64_t min, int64_t max) {
  const std::string text = variable(name).value_or("");
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= min && value <= max) return value;
  throw Error(ErrorKind::usage, text.empty()
                                    ? fmt::format("{} is not set, and the other variables of several ranks are", name)
                                    : fmt::format("{} is '{}': expected a number from {} to {}", name, text, min, max))
      .advise("start the ranks with torchrun or srun, which set it; or unset WORLD_SIZE to train in one process");
}

constexpr int64_t any = std::numeric_limits<int32_t>::max();

Launch of_torchrun() {
  Launch launch;
  launch.ranks = number("WORLD_SIZE", 1, any);
  launch.rank = number("RANK", 0, launch.ranks - 1);
  launch.local_rank = number("LOCAL_RANK", 0, launch.ranks - 1);
  if (variable("LOCAL_WORLD_SIZE")) launch.local_ranks = number("LOCAL_WORLD_SIZE", 1, launch.ranks);
  launch.port = static_cast<uint16_t>(number("MASTER_PORT", 1, 65535));
  launch.host = variable("MASTER_ADDR").value_or("");
  if (launch.host.empty()) number("MASTER_ADDR", 0, 0);
  launch.has_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (variable("TORCHELASTIC_RESTART_COUNT")) launch.attempt = number("TORCHELASTIC_RESTART_COUNT", 0, any);
  return launch;
}

Launch of_slurm(const char* ranks) {
  Launch launch;
  launch.ranks = number(ranks, 1, any);
  launch.rank = number("SLURM_PROCID", 0, launch.ranks - 1);
  launch.local_rank = number("SLURM_LOCALID", 0, launch.ranks - 1);
  launch.host = variable("MASTER_ADDR").value_or("");
  for (const char* list : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (launch.host.empty()) launch.host = first_host(variable(list).value_or(""));
  if (launch.host.empty()) launch.host = "127.0.0.1";
  launch.port = static_cast<uint16_t>(variable("MASTER_PORT")    ? number("MASTER_PORT", 1, 65535)
                                      : variable("SLURM_JOB_ID") ? first_port + number("SLURM_JOB_ID", 0, any) % ports
                                                                 : first_port);
  return launch;
}

} // namespace

std::string first_host(const std::string& list) {
  const size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", open);
  const size_t close = list.find(']', open);
  if (end == std::string::npos || close == std::string::npos) return "";
  const std::string behind = list.substr(close + 1, list.find(',', close) - close - 1);
  return list.substr(0, open) + list.substr(open + 1, end - open - 1) + behind;
}

std::optional<Launch> launch_of_environment() {
  if (const auto ranks = variable("WORLD_SIZE"); ranks && (variable("RANK") || *ranks != "1")) return of_torchrun();
  if (variable("SLURM_STEP_NUM_TASKS").value_or("1") != "1") return of_slurm("SLURM_STEP_NUM_TASKS");
  if (const auto count = variable("OMPI_COMM_WORLD_SIZE"); count && number("OMPI_COMM_WORLD_SIZE", 1, any) > 1)
    throw Error(ErrorKind::usage, "mpirun started {} processes, which do not know of each other", *count)
        .advise("start them with torchrun or with Slurm's srun");
  return {};
}

void choose_gpu(const Launch& launch) {
  if (const char* set = getenv("CUDA_VISIBLE_DEVICES"); set && !*set) return; // all ranks are to compute on CPUs
  const auto visible = variable("CUDA_VISIBLE_DEVICES");
  const auto devices = visible ? split(*visible, ',') : std::vector<std::string>();
  if (devices.size() == 1) return; // Slurm gave the rank one of its own
  const auto index = static_cast<size_t>(launch.local_rank);
  if (visible && index >= devices.size())
    throw Error(ErrorKind::usage, "rank {} is the {}th of its machine, and CUDA_VISIBLE_DEVICES={} has {} GPUs",
                launch.rank, index + 1, *visible, devices.size())
        .advise("start one rank a GPU: torchrun --nproc-per-node");
  setenv("CUDA_VISIBLE_DEVICES", (visible ? devices[index] : std::to_string(index)).c_str(), 1);
}

} // namespace fvlm::dist
