#include "base/error.h"
#include "plugin/guard.h"
#include "workshop.h"

#include <array>
#include <cmath>
#include <cstring>
#include <gmock/gmock.h>

namespace fvlm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A float32 tensor on the host that owns its memory.
struct HostTensor {
  HostTensor(std::vector<int64_t> sizes, std::vector<int64_t> steps = {})
      : shape(std::move(sizes)), strides(std::move(steps)) {
    if (strides.empty()) {
      strides.assign(shape.size(), 1);
      for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    }
    tensor = {values.data(),
              {FVLM_CPU, 0},
              static_cast<int32_t>(shape.size()),
              {FVLM_FLOAT, 32, 1},
              shape.data(),
              strides.data(),
              0};
  }
  std::vector<int64_t> shape, strides;
  std::array<float, 64> values{};
  fvlm_tensor tensor;
};

struct Attention {
  HostTensor q{{4, 1, 2}}, k{{4, 1, 2}}, v{{4, 1, 2}}, out{{4, 1, 2}};
  fvlm_attention_query query{};
  fvlm_attention_forward arguments{};
  fvlm_call call{};
  Attention() {
    query.struct_size = sizeof query;
    query.head_dim = 2;
    arguments.struct_size = sizeof arguments;
    arguments.q = &q.tensor;
    arguments.k = &k.tensor;
    arguments.v = &v.tensor;
    arguments.out = &out.tensor;
    call.struct_size = sizeof call;
    call.device = {FVLM_CPU, 0};
  }
  using Function = fvlm_status (*)(fvlm_instance*, const fvlm_call*, const fvlm_attention_query*,
                                   const fvlm_attention_forward*);
  void run(Function function) { invoke("sample", "attention forward", function, nullptr, call, query, arguments); }
  std::string error_of(Function function) {
    try {
      run(function);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::plugin);
      EXPECT_EQ(error.exit_code(), 5);
      return error.text();
    }
    return "no error";
  }
};

class Debug {
 public:
  Debug() { set_plugin_debug(true); }
  ~Debug() { set_plugin_debug(false); }
};

TEST(Guard, NamesPluginOperationAndShapesOfAFailedCall) {
  Attention attention;
  EXPECT_THAT(attention.error_of([](auto*, auto* call, auto* query, auto*) {
    return fvlm_fail(call->error, FVLM_ERROR_UNSUPPORTED, "head_dim %d not\nsupported", query->head_dim);
  }),
              AllOf(HasSubstr("sample: attention forward: FVLM_ERROR_UNSUPPORTED: head_dim 2 not supported"),
                    HasSubstr("q: float32 [4, 1, 2]"), HasSubstr("out: float32 [4, 1, 2]")));
  EXPECT_THAT(attention.error_of([](auto*, auto*, auto*, auto*) { return fvlm_status{77}; }),
              HasSubstr("status 77: (no reason given)"));
}

TEST(Guard, CatchesExceptionsOfAPlugin) {
  Attention attention;
  EXPECT_THAT(
      attention.error_of([](auto*, auto*, auto*, auto*) -> fvlm_status { throw std::out_of_range("index 9"); }),
      AllOf(HasSubstr("attention forward: threw std::out_of_range: index 9"), HasSubstr("k: float32 [4, 1, 2]")));
  EXPECT_THAT(attention.error_of([](auto*, auto*, auto*, auto*) -> fvlm_status { throw "text"; }),
              HasSubstr("threw a char const*"));
}

TEST(Guard, SurvivesAnUnterminatedErrorText) {
  Attention attention;
  EXPECT_THAT(attention.error_of([](auto*, auto* call, auto*, auto*) {
    std::memset(call->error->text, 'x', call->error->capacity);
    return fvlm_status{FVLM_ERROR_INTERNAL};
  }),
              HasSubstr("FVLM_ERROR_INTERNAL: xxxx"));
}

TEST(Guard, InDebugModeNamesTheOverrunOutput) {
  Debug debug;
  Attention attention;
  EXPECT_THAT(attention.error_of([](auto*, auto*, auto*, auto* arguments) {
    static_cast<float*>(arguments->out->data)[8] = 3;
    return fvlm_status{FVLM_OK};
  }),
              AllOf(HasSubstr("attention forward: wrote outside 'out', 0 bytes past its end"),
                    HasSubstr("out: float32 [4, 1, 2]")));
  EXPECT_THAT(attention.error_of([](auto*, auto*, auto*, auto* arguments) {
    static_cast<char*>(arguments->out->data)[-3] = 3;
    return fvlm_status{FVLM_OK};
  }),
              HasSubstr("wrote outside 'out', 3 bytes before its beginning"));
  EXPECT_EQ(attention.out.values[8], 0) << "the tensor's neighbour was written";
}

TEST(Guard, InDebugModeChecksTheWorkspace) {
  Debug debug;
  Attention attention;
  std::array<char, 64> workspace{};
  attention.call.workspace = workspace.data();
  attention.call.workspace_size = 16;
  EXPECT_THAT(attention.error_of([](auto*, auto* call, auto*, auto*) {
    static_cast<char*>(call->workspace)[20] = 1;
    return fvlm_status{FVLM_OK};
  }),
              HasSubstr("wrote outside 'workspace', 4 bytes past its end"));
}

TEST(Guard, InDebugModeChecksTheGapsOfAStridedOutput) {
  Debug debug;
  Attention attention;
  attention.out = HostTensor({4, 1, 2}, {6, 2, 1});
  attention.out.tensor.data = attention.out.values.data();
  attention.out.values.fill(5);
  auto fill_rows = [](auto*, auto*, auto*, auto* arguments) {
    for (int row = 0; row < 4; ++row)
      for (int i = 0; i < 2; ++i) static_cast<float*>(arguments->out->data)[row * 6 + i] = static_cast<float>(row);
    return fvlm_status{FVLM_OK};
  };
  attention.run(fill_rows);
  EXPECT_EQ(attention.out.values[6], 1);
  EXPECT_EQ(attention.out.values[19], 3);
  EXPECT_EQ(attention.out.values[2], 5) << "the gap";
  EXPECT_THAT(attention.error_of([](auto*, auto*, auto*, auto* arguments) {
    static_cast<float*>(arguments->out->data)[2] = 7;
    return fvlm_status{FVLM_OK};
  }),
              AllOf(HasSubstr("wrote between the rows of 'out', 10 bytes after its beginning"),
                    HasSubstr("strides [6, 2, 1]")));
}

TEST(Guard, InDebugModePassesTheOutputsContent) {
  Debug debug;
  Attention attention;
  attention.out.values.fill(5);
  attention.run([](auto*, auto*, auto*, auto* arguments) {
    for (int i = 0; i < 8; ++i) static_cast<float*>(arguments->out->data)[i] += 1; // accumulates
    return fvlm_status{FVLM_OK};
  });
  EXPECT_EQ(attention.out.values[7], 6);
  EXPECT_EQ(attention.out.values[8], 5);
}

TEST(GuardedBuffer, FindsWritesOnEitherSide) {
  GuardedBuffer buffer(10);
  EXPECT_EQ(buffer.violation(), std::nullopt);
  float first;
  std::memcpy(&first, buffer.data(), sizeof first);
  EXPECT_TRUE(std::isnan(first)) << "what is never written shows";
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
  std::memset(buffer.data(), 0, buffer.size());
  EXPECT_EQ(buffer.violation(), std::nullopt);
  auto* bytes = static_cast<unsigned char*>(buffer.data());
  unsigned char before = bytes[-2];
  bytes[-2] = 0;
  EXPECT_EQ(buffer.violation(), -2);
  bytes[-2] = before;
  bytes[4000] = 0;
  EXPECT_EQ(buffer.violation(), 3990);
}

TEST(GuardedBuffer, MayBeEmpty) {
  EXPECT_EQ(GuardedBuffer(0).violation(), std::nullopt);
}

TEST(Describe, ShowsTypeShapeStridesAndDevice) {
  HostTensor tensor({2, 3});
  EXPECT_EQ(describe(&tensor.tensor), "float32 [2, 3]");
  HostTensor strided({2, 3}, {8, 1});
  strided.tensor.dtype = {FVLM_BFLOAT, 16, 1};
  strided.tensor.device = {FVLM_CUDA, 1};
  EXPECT_EQ(describe(&strided.tensor), "bfloat16 [2, 3] strides [8, 1] cuda:1");
  EXPECT_EQ(describe(nullptr), "null");
}

// With libraries rather than lambdas, to cross the real ABI boundary.
class GuardedLibrary : public Workshop {
 protected:
  std::string error_of(const std::string& built) {
    lay("sample", built);
    Registry registry(options());
    const LoadedPlugin* plugin = registry.load("sample");
    if (!plugin) return "not loaded";
    Attention attention;
    return attention.error_of(plugin->table<fvlm_attention_v1>()->forward);
  }
};

TEST_F(GuardedLibrary, FailureIsQuoted) {
  EXPECT_THAT(error_of("fails_politely"),
              HasSubstr("sample: attention forward: FVLM_ERROR_UNSUPPORTED: head_dim 2 not supported"));
}
TEST_F(GuardedLibrary, ExceptionIsCaught) {
  EXPECT_THAT(error_of("forward_throws"), HasSubstr("threw std::runtime_error: out of luck"));
}
TEST_F(GuardedLibrary, OverrunIsFound) {
  Debug debug;
  EXPECT_THAT(error_of("writes_too_far"), HasSubstr("wrote outside 'out'"));
}

} // namespace
} // namespace fvlm::test
