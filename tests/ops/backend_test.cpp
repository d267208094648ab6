// How Backend and Prepared call plugins: the order of calls, memory, and messages about plugins that misbehave.
#include "ops/attention.h"
#include "ops/backend.h"
#include "ops/kernels.h"
#include "ops/torch_threads.h"
#include "tools.h"

#include <fvlm/fvlm.hpp>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <set>
#include <thread>

using namespace fvlm;
using namespace fvlm::ops;
using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

namespace {

// Configures and records the calls of the plugin below. One test at a time.
struct Script {
  int alive = 0, prepared = 0, calls = 0;
  uint64_t workspace = 0, deterministic_workspace = 0;
  uint32_t saved = 0;
  fvlm_tensor_spec spec = {{FVLM_FLOAT, 32, 1}, 1, {3}};
  fvlm_call last{};
  std::string fail; // where: "create", "supports", "prepare", "forward", "throw"
};
Script script;

struct Scripted : sdk::Kernels {
  Scripted() {
    if (script.fail == "create") throw sdk::Failure(FVLM_ERROR_DEVICE, "no handle for you");
    ++script.alive;
  }
  ~Scripted() { --script.alive; }
  static sdk::Support supports(const Query& query) {
    if (script.fail == "supports") return sdk::refuse("width %d is odd", static_cast<int>(query.width));
    return sdk::accept(100, "as scripted");
  }
  void requirements(const Query&, sdk::Requirements& wanted) const {
    wanted.forward_workspace = script.workspace;
    wanted.backward_workspace = script.workspace / 2;
    wanted.deterministic_workspace = script.deterministic_workspace;
    wanted.saved_count = script.saved;
    for (auto& spec : wanted.saved) spec = script.spec;
  }
  void prepare(const fvlm_call& call, const Query&) {
    ++script.prepared;
    script.last = call;
    if (script.fail == "prepare") throw sdk::Failure(FVLM_ERROR_MEMORY, "no room for plans");
  }
  void swiglu_forward(const fvlm_call& call, const Query&, const fvlm_swiglu_forward&) {
    ++script.calls;
    script.last = call;
    if (call.workspace) std::memset(call.workspace, 1, call.workspace_size);
    if (script.fail == "forward") throw sdk::Failure(FVLM_ERROR_UNSUPPORTED, "strides of gate");
  }
  void swiglu_backward(const fvlm_call& call, const Query&, const fvlm_swiglu_backward&) { script.last = call; }
};

const fvlm_kernels_v1 scripted_table = sdk::Kernels::table<Scripted>();

KernelsBackend scripted_backend() {
  return {"scripted", scripted_table, host_for("scripted"), at::kCPU};
}

fvlm_kernels_query make_query() {
  return {.dtype = abi_dtype(at::kFloat), .gradient_dtype = abi_dtype(at::kFloat), .rows = 2, .width = 3};
}

template <class F>
std::string error_of(F&& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::plugin);
    return error.text();
  }
  return "no error";
}

class Backends : public testing::Test {
 protected:
  void SetUp() override { script = {}; }
  Tensor gate = at::zeros({2, 3}), up = at::zeros({2, 3});
};

} // namespace

TEST_F(Backends, InstanceLivesAsLongAsItsLastUser) {
  {
    auto backend = std::make_unique<KernelsBackend>(scripted_backend());
    const SwiGlu swiglu(*backend, make_query());
    backend.reset();
    EXPECT_EQ(script.alive, 1);
    EXPECT_EQ(script.prepared, 1);
    swiglu.forward(gate, up);
    EXPECT_EQ(script.calls, 1);
  }
  EXPECT_EQ(script.alive, 0);
}

TEST_F(Backends, WorkspaceIsAlignedSizedAndShared) {
  const auto backend = scripted_backend();
  script.workspace = 1000;
  const SwiGlu small(backend, make_query());
  script.workspace = 100000;
  const SwiGlu large(backend, make_query());
  for (const auto& [swiglu, size] : {std::pair{&small, 1000u}, {&large, 100000u}}) {
    swiglu->forward(gate, up);
    EXPECT_EQ(script.last.workspace_size, size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(script.last.workspace) % 256, 0u);
    void* const forward = script.last.workspace;
    swiglu->backward(gate, up, gate);
    EXPECT_EQ(script.last.workspace_size, size / 2);
    EXPECT_EQ(script.last.workspace, forward);
  }
  script.workspace = 0;
  SwiGlu(backend, make_query()).forward(gate, up);
  EXPECT_EQ(script.last.workspace, nullptr);
}

TEST_F(Backends, DeterministicCallsGetTheirOwnWorkspace) {
  script.workspace = 1000;
  script.deterministic_workspace = 5000;
  for (const uint32_t flags : {0u, uint32_t{FVLM_DETERMINISTIC}}) {
    const auto backend = scripted_backend();
    backend.state().flags = flags;
    const SwiGlu swiglu(backend, make_query());
    EXPECT_EQ(script.last.workspace_size, flags ? 5000u : 1000u) << "prepare()";
    swiglu.forward(gate, up);
    EXPECT_EQ(script.last.workspace_size, 1000u);
    swiglu.backward(gate, up, gate);
    EXPECT_EQ(script.last.workspace_size, flags ? 5000u : 500u);
  }
}

TEST_F(Backends, CallsCarryFlagsRandomStateDeviceAndHost) {
  const auto backend = scripted_backend();
  const SwiGlu swiglu(backend, make_query());
  backend.state() = {.flags = FVLM_DETERMINISTIC, .random_seed = 7, .random_offset = 9};
  swiglu.forward(gate, up);
  EXPECT_EQ(script.last.flags, uint32_t{FVLM_DETERMINISTIC});
  EXPECT_EQ(script.last.random_seed, 7u);
  EXPECT_EQ(script.last.random_offset, 9u);
  EXPECT_EQ(script.last.device.type, FVLM_CPU);
  EXPECT_EQ(script.last.stream, nullptr);
  EXPECT_EQ(script.last.host, host_for("scripted"));
}

TEST_F(Backends, FailuresNamePluginOperationReasonAndShapes) {
  script.fail = "create";
  EXPECT_THAT(error_of([] { scripted_backend(); }), AllOf(HasSubstr("scripted"), HasSubstr("no handle for you")));
  script.fail = "supports";
  EXPECT_THAT(error_of([] { SwiGlu(scripted_backend(), make_query()); }),
              AllOf(HasSubstr("scripted"), HasSubstr("swiglu"), HasSubstr("width 3 is odd")));
  script.fail = "prepare";
  EXPECT_THAT(error_of([] { SwiGlu(scripted_backend(), make_query()); }),
              AllOf(HasSubstr("scripted"), HasSubstr("no room for plans")));
  script.fail = "forward";
  EXPECT_THAT(
      error_of([&] { SwiGlu(scripted_backend(), make_query()).forward(gate, up); }),
      AllOf(HasSubstr("scripted"), HasSubstr("swiglu forward"), HasSubstr("strides of gate"), HasSubstr("[2, 3]")));
  EXPECT_EQ(script.alive, 0) << "a failed setup leaves an instance behind";
}

TEST_F(Backends, RefusesImpossibleRequirements) {
  const auto refusal = [] { return error_of([] { SwiGlu(scripted_backend(), make_query()); }); };
  script.saved = 1;
  EXPECT_EQ(refusal(), "no error");
  script.spec.ndim = 5;
  EXPECT_THAT(refusal(), HasSubstr("5 dimensions"));
  script.spec = {{FVLM_FLOAT, 32, 1}, 1, {-3}};
  EXPECT_THAT(refusal(), HasSubstr("the shape [-3]"));
  script.spec = {{9, 32, 1}, 1, {3}};
  EXPECT_THAT(refusal(), HasSubstr("code 9"));
  script.saved = 40;
  EXPECT_THAT(refusal(), HasSubstr("40 saved tensors"));
  script.saved = 0;
  script.workspace = ~uint64_t{0};
  EXPECT_THAT(refusal(), HasSubstr("workspaces of 18446744073709551615"));
}

TEST_F(Backends, OperationWithoutAFunctionIsAnError) {
  fvlm_kernels_v1 table = scripted_table;
  table.swiglu_backward = nullptr;
  const SwiGlu swiglu({"scripted", table, host_for("scripted"), at::kCPU}, make_query());
  EXPECT_THAT(error_of([&] { swiglu.backward(gate, up, gate); }), HasSubstr("swiglu backward"));
}

// Every argument of an attention's backward.
TEST_F(Backends, CallCarriesAllTensorsOfItsArguments) {
  struct Greedy : sdk::Attention {
    static sdk::Support supports(const Query&) { return sdk::accept(100, "saves all it may"); }
    void requirements(const Query&, sdk::Requirements& wanted) const {
      for (int i = 0; i < FVLM_MAX_SAVED; ++i) wanted.save(abi_dtype(at::kFloat), {i + 1});
    }
    void forward(const fvlm_call&, const Query&, const fvlm_attention_forward&) {}
    void backward(const fvlm_call&, const Query&, const fvlm_attention_backward& a) {
      script.calls = 0;
      for (const fvlm_tensor* saved : a.saved) EXPECT_EQ(saved->shape[0], ++script.calls);
      for (const fvlm_tensor* each : {a.positions_kv, a.guest_q, a.guest_d_out, a.guest_cu_seqlens})
        EXPECT_TRUE(each && each->data);
    }
  };
  static const fvlm_attention_v1 table = sdk::Attention::table<Greedy>();
  const ops::Attention attention({"greedy", table, host_for("greedy"), at::kCPU},
                                 {.dtype = abi_dtype(at::kFloat), .needs_backward = 1});
  const Tensor rows = at::zeros({2, 1, 8}), starts = at::zeros({2}, at::kInt), positions = at::zeros({2}, at::kInt);
  const Packing packing{starts, starts, positions, positions};
  const auto output = attention.forward(rows, rows, rows, packing);
  attention.backward(rows, rows, rows, packing, output, rows, {}, {rows, rows, starts});
  EXPECT_EQ(script.calls, FVLM_MAX_SAVED);
}

TEST(TorchThreads, RunParallelForOfPlugins) {
  use_torch_threads();
  EXPECT_EQ(parallel_threads(), at::get_num_threads());
  std::vector<int> visits(1000);
  const fvlm_host* host = host_for("scripted");
  host->parallel_for(
      host, 1000, 10,
      [](void* context, int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index) ++(*static_cast<std::vector<int>*>(context))[index];
      },
      &visits);
  EXPECT_EQ(visits, std::vector<int>(1000, 1));
  set_parallel_backend({}, 0);
}

TEST(TorchThreads, EachPieceHasAThreadOfItsOwn) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  use_torch_threads();
  const fvlm_host* host = host_for("scripted");
  const auto threads_of = [&](int64_t count) {
    std::vector<std::thread::id> threads(static_cast<size_t>(count));
    host->parallel_for(
        host, count, 1,
        [](void* context, int64_t begin, int64_t end) {
          for (int64_t index = begin; index < end; ++index)
            (*static_cast<std::vector<std::thread::id>*>(context))[static_cast<size_t>(index)] =
                std::this_thread::get_id();
        },
        &threads);
    return std::set<std::thread::id>(threads.begin(), threads.end()).size();
  };
  EXPECT_EQ(threads_of(3), 3U);
  EXPECT_EQ(threads_of(2), 2U);
  {
    const ModelThreads few(parameters_worth_threads - 1);
    EXPECT_EQ(threads_of(3), 1U) << "a small model";
  }
  at::set_num_threads(before);
  set_parallel_backend({}, 0);
}

TEST(ReferenceEntry, HasOneTablePerKind) {
  const fvlm_plugin* plugin = reference_entry(host_for("reference"));
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin, reference_entry(host_for("reference")));
  EXPECT_STREQ(plugin->name, "reference");
  for (const char* kind : {FVLM_ATTENTION_KIND, FVLM_LOSS_KIND, FVLM_KERNELS_KIND, FVLM_OPTIMIZER_KIND("adamw"),
                           FVLM_OPTIMIZER_KIND("muon"), FVLM_PACKER_KIND, FVLM_QUANTIZER_KIND("int8")}) {
    ASSERT_NE(plugin->table(kind), nullptr) << kind;
    EXPECT_EQ(plugin->table(kind), plugin->table(kind)) << kind;
  }
  EXPECT_EQ(plugin->table("fvlm.optimizer/1"), nullptr);
  EXPECT_EQ(plugin->table("fvlm.optimizer/1:sgd"), nullptr);
  fvlm_host old = *host_for("reference");
  old.abi_major = FVLM_ABI_MAJOR + 1;
  EXPECT_EQ(reference_entry(&old), nullptr);
}
