#include "base/error.h"
#include "dist/rendezvous.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <gmock/gmock.h>
#include <map>

namespace fvlm::dist {
namespace {

using testing::HasSubstr;

class Rendezvous : public testing::Test {
 protected:
  Rendezvous() { clear(); }
  ~Rendezvous() override { clear(); }
  static void clear() {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                             "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "SLURM_PROCID",
                             "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                             "SLURM_NODELIST", "SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"})
      unsetenv(name);
  }
  static std::optional<Launch> launch(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    return launch_of_environment();
  }
  static std::string error(const std::map<std::string, std::string>& variables) {
    try {
      launch(variables);
    } catch (const Error& error) {
      return error.text();
    }
    return "none";
  }
};

TEST_F(Rendezvous, IsOfOneProcessWithoutALauncher) {
  EXPECT_FALSE(launch({}));
  EXPECT_FALSE(launch({{"WORLD_SIZE", "1"}})) << "some images set it";
  EXPECT_FALSE(launch({{"SLURM_STEP_NUM_TASKS", "1"}}));
}

TEST_F(Rendezvous, ReadsTorchrun) {
  const auto launched = launch({{"WORLD_SIZE", "16"},
                                {"RANK", "11"},
                                {"LOCAL_RANK", "3"},
                                {"LOCAL_WORLD_SIZE", "8"},
                                {"MASTER_ADDR", "node7"},
                                {"MASTER_PORT", "29400"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(launched);
  EXPECT_EQ(launched->rank, 11);
  EXPECT_EQ(launched->ranks, 16);
  EXPECT_EQ(launched->local_rank, 3);
  EXPECT_EQ(launched->local_ranks, 8);
  EXPECT_EQ(launched->host, "node7");
  EXPECT_EQ(launched->port, 29400);
  EXPECT_TRUE(launched->has_store);
  EXPECT_EQ(launched->attempt, 2);
}

TEST_F(Rendezvous, ReadsSlurm) {
  const auto launched = launch({{"SLURM_STEP_NUM_TASKS", "8"},
                                {"SLURM_PROCID", "5"},
                                {"SLURM_LOCALID", "1"},
                                {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                                {"SLURM_JOB_ID", "1234567"}});
  ASSERT_TRUE(launched);
  EXPECT_EQ(launched->rank, 5);
  EXPECT_EQ(launched->ranks, 8);
  EXPECT_EQ(launched->local_rank, 1);
  EXPECT_EQ(launched->host, "gpu03");
  EXPECT_EQ(launched->port, 30067);
  EXPECT_FALSE(launched->has_store);
}

TEST_F(Rendezvous, FindsTheFirstHost) {
  EXPECT_EQ(first_host("node[03-05,9],login"), "node03");
  EXPECT_EQ(first_host("login,node[03-05]"), "login");
  EXPECT_EQ(first_host("node[7].cluster"), "node7.cluster");
  EXPECT_EQ(first_host("alone"), "alone");
  EXPECT_EQ(first_host("node[3"), "");
}

TEST_F(Rendezvous, NamesTheVariableThatMakesNoSense) {
  EXPECT_THAT(error({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set"));
  EXPECT_THAT(error({{"WORLD_SIZE", "2"}, {"RANK", "2"}}), HasSubstr("RANK is '2': expected a number from 0 to 1"));
  EXPECT_THAT(error({{"WORLD_SIZE", "two"}}), HasSubstr("WORLD_SIZE is 'two'"));
  clear();
  EXPECT_THAT(error({{"OMPI_COMM_WORLD_SIZE", "4"}}), HasSubstr("mpirun started 4 processes"));
}

TEST_F(Rendezvous, ChoosesTheGpuOfTheRank) {
  const auto chosen = [](const char* visible, int64_t local_rank) {
    visible ? setenv("CUDA_VISIBLE_DEVICES", visible, 1) : unsetenv("CUDA_VISIBLE_DEVICES");
    Launch launch;
    launch.local_rank = local_rank;
    choose_gpu(launch);
    return std::string(std::getenv("CUDA_VISIBLE_DEVICES"));
  };
  EXPECT_EQ(chosen(nullptr, 3), "3");
  EXPECT_EQ(chosen("4,5,6,7", 1), "5");
  EXPECT_EQ(chosen("7", 3), "7") << "Slurm gave the rank its own";
  EXPECT_EQ(chosen("", 1), "") << "all ranks are to compute on CPUs";
  EXPECT_THROW(chosen("4,5", 2), Error);
}

} // namespace
} // namespace fvlm::dist
