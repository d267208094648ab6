// plugin.cu: the plugin's entry points: torch.optim.AdamW over a flat parameter arena in one launch, and
// torch.optim.Muon over its matrices, batched by shape.
#include "adamw.h"
#include "common/arena.h"
#include "muon.h"
#include "newton_schulz.h"
#include "step.h"

#include <deque>
#include <vector>

namespace fvlm::plugins {
namespace {

using sdk::BFloat16, sdk::Half, sdk::Support, sdk::States;

// Also checked by every call.
Support fits(const fvlm_optimizer_query& query) {
  if (Support no = fits_arena(query); no.score == 0) return no;
  return sdk::accept(300, "one launch, one pass");
}

void* untyped(const fvlm_tensor* tensor, fvlm_dtype dtype, const char* name, std::int64_t elements) {
  void* data = nullptr;
  sdk::dispatch<float, BFloat16, Half>(dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    data = const_cast<Element*>(flat<const Element>(tensor, name, elements));
  });
  return data;
}

void require_device(const fvlm_device& device) {
  if (Support no = sdk::check_device(device, 8, 0); no.score == 0)
    throw sdk::Failure(FVLM_ERROR_DEVICE, "%s", no.reason);
}

template <class Algorithm>
StepTypes types_of(const fvlm_optimizer_query& query) {
  return {query.gradient_dtype, query.parameter_dtype, Algorithm::states(query).state[0].dtype};
}

template <class Algorithm>
void fill(ArenaStep& step, const fvlm_optimizer_query& query, const fvlm_optimizer_step& arguments) {
  const std::int64_t n = query.elements;
  const StepTypes types = types_of<Algorithm>(query);
  step.master = flat<float>(arguments.master, "master", n);
  if (types.copy != sdk::float32) step.copy = untyped(arguments.parameter, types.copy, "parameter", n);
  step.gradient = untyped(arguments.gradient, types.gradient, "gradient", n);
  step.moment = untyped(arguments.state[0], types.moment, Algorithm::states(query).state[0].name, n);
  step.hyper = matrix<const float>(arguments.hyper, "hyper", query.group_count, std::size(Algorithm::hyperparameters));
  step.scale = flat<const float>(arguments.scale, "scale", 1);
  step.skip = flat<const std::int32_t>(arguments.skip, "skip", 1);
}

class Adamw : public sdk::Optimizer {
 public:
  static constexpr const char* algorithm = "adamw";
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 1e3},   {"beta1", 0.9, 0, 0.9999999},   {"beta2", 0.999, 0, 0.9999999},
      {"eps", 1e-8, 0, 1e-1}, {"weight_decay", 1e-2, 0, 1e3},
  };

  explicit Adamw(const fvlm_instance_config& config) { require_device(config.device); }

  static Support supports(const Query& query) {
    if (Support no = sdk::check_device(query.device, 8, 0); no.score == 0) return no;
    return fits(query);
  }

  // v stays float32: with beta2 = 0.999 a step changes it by less than half of bfloat16's spacing, so it would never
  // change.
  static States states(const Query& query) {
    const bool narrow = query.state_dtype == sdk::bfloat16;
    return {{"m", narrow ? sdk::bfloat16 : sdk::float32}, {"v", sdk::float32}};
  }

  void step(const fvlm_call& call, const Query& query, const Step& arguments) const {
    sdk::require(fits(query));
    AdamwStep step{};
    fill<Adamw>(step, query, arguments);
    step.second = flat<float>(arguments.state[1], "v", query.elements);
    step.segments = reinterpret_cast<const fvlm_optimizer_segment*>(
        matrix<const std::int64_t>(arguments.segments, "segments", query.segment_count, 4));
    step.step = flat<const std::int64_t>(arguments.step, "step", 1);
    step.segment_count = query.segment_count;
    step.elements = query.elements;
    adamw(sdk::stream_of(call), types_of<Adamw>(query), step);
  }
};

class Muon : public sdk::Optimizer {
 public:
  static constexpr const char* algorithm = "muon";
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 1e3},          {"momentum", 0.95, 0, 0.9999999}, {"nesterov", 1, 0, 1},
      {"weight_decay", 0.1, 0, 1e3}, {"eps", 1e-7, 0, 1e-1},
  };

  explicit Muon(const fvlm_instance_config& config) { require_device(config.device); }

  static Support supports(const Query& query) {
    if (Support no = sdk::check_device(query.device, 8, 0); no.score == 0) return no;
    return matrices(query);
  }

  static States states(const Query& query) {
    const bool narrow = query.state_dtype == sdk::bfloat16;
    return {{"momentum", narrow ? sdk::bfloat16 : sdk::float32}};
  }

  void requirements(const Query& query, sdk::Requirements& requirements) const {
    sdk::require(matrices(query));
    requirements.forward_workspace = workspace_of(batches_of(query, types_of<Muon>(query)));
  }

  void prepare(const fvlm_call&, const Query& query) {
    sdk::require(matrices(query));
    (void)plan_of(query);
  }

  void step(const fvlm_call& call, const Query& query, const Step& arguments) {
    sdk::require(matrices(query));
    const Plan& plan = plan_of(query);
    if (call.workspace_size < plan.workspace) // checked before anything is written
      throw sdk::Failure(FVLM_ERROR_WORKSPACE, "expected a workspace of %llu bytes but got %llu",
                         static_cast<unsigned long long>(plan.workspace),
                         static_cast<unsigned long long>(call.workspace_size));
    const StepTypes types = types_of<Muon>(query);
    ArenaStep step{};
    fill<Muon>(step, query, arguments);
    cudaStream_t stream = sdk::stream_of(call);
    for (std::size_t i = 0; i < plan.batches.size(); ++i) {
      const MuonBatch& batch = plan.batches[i];
      sdk::Workspace space(call);
      const Scratch scratch = take(space, batch);
      muon_momentum(stream, types, step, batch, scratch.matrices.x, scratch.squares);
      muon_apply(stream, types, step, batch, plan.products[i].run(library_, stream, scratch.matrices));
    }
  }

 private:
  static constexpr std::int64_t max_bytes = std::int64_t{128} << 20; // of a batch with more than one matrix

  struct Scratch {
    NewtonSchulzSpace matrices;
    double* squares;
  };

  // Built once per query, so that a step allocates nothing.
  struct Plan {
    StepTypes types;
    std::vector<fvlm_optimizer_segment> segments;
    std::vector<MuonBatch> batches;
    std::vector<NewtonSchulz> products; // one per batch
    std::uint64_t workspace;

    bool is_for(const Query& query, const StepTypes& types_wanted) const {
      const auto same = [](const fvlm_optimizer_segment& a, const fvlm_optimizer_segment& b) {
        return a.offset == b.offset && a.rows == b.rows && a.cols == b.cols && a.group == b.group;
      };
      return types == types_wanted &&
             std::equal(segments.begin(), segments.end(), query.segments, query.segments + query.segment_count, same);
    }
  };

  const Plan& plan_of(const Query& query) {
    const StepTypes types = types_of<Muon>(query);
    for (const Plan& plan : plans_)
      if (plan.is_for(query, types)) return plan;
    Plan plan{types, {query.segments, query.segments + query.segment_count}, batches_of(query, types), {}, 0};
    for (const MuonBatch& batch : plan.batches) plan.products.emplace_back(library_, batch.shape);
    plan.workspace = workspace_of(plan.batches);
    plans_.push_back(std::move(plan));
    return plans_.back();
  }

  static Support matrices(const Query& query) {
    if (Support no = fits(query); no.score == 0) return no;
    for (std::int64_t i = 0; i < query.segment_count; ++i)
      if (query.segments[i].rows == 1)
        return sdk::refuse("segment %lld is a vector: muon steps matrices; give vectors to adamw",
                           static_cast<long long>(i));
    return sdk::accept(300, "Newton-Schulz in %s by cuBLASLt", sdk::name_of(dtype_of_products(types_of<Muon>(query))));
  }

  // For x, other, gram and polynomial.
  static std::int64_t bytes_of_matrix(const MatricesShape& shape) {
    return 2 * (shape.rows * shape.cols + shape.small() * shape.small()) *
           static_cast<std::int64_t>(sdk::bytes_of(shape.dtype));
  }

  static std::vector<MuonBatch> batches_of(const Query& query, const StepTypes& types) {
    const auto padded = [](std::int64_t size) { return (size + 7) / 8 * 8; };
    std::vector<MuonBatch> batches;
    for (std::int64_t i = 0; i < query.segment_count; ++i) {
      const fvlm_optimizer_segment& segment = query.segments[i];
      if (size_of(segment) == 0) continue;
      const std::int64_t rows = padded(segment.rows), cols = padded(segment.cols);
      auto batch = std::find_if(batches.begin(), batches.end(), [&](const MuonBatch& b) {
        return b.shape.rows == rows && b.shape.cols == cols && b.shape.count < MuonBatch::max_matrices &&
               (b.shape.count + 1) * bytes_of_matrix(b.shape) <= max_bytes;
      });
      if (batch == batches.end())
        batch = batches.insert(batch, MuonBatch{{dtype_of_products(types), rows, cols, 0}, {}});
      batch->segments[batch->shape.count++] = segment;
    }
    return batches;
  }

  static std::uint64_t workspace_of(const std::vector<MuonBatch>& batches) {
    std::uint64_t largest = 0;
    for (const MuonBatch& batch : batches) {
      sdk::Workspace space;
      (void)take(space, batch);
      largest = std::max<std::uint64_t>(largest, space.used());
    }
    return largest;
  }

  static Scratch take(sdk::Workspace& space, const MuonBatch& batch) {
    const MatricesShape& shape = batch.shape;
    const auto take_matrices = [&](std::int64_t rows, std::int64_t cols) {
      return space.take<char>(shape.count * rows * cols * static_cast<std::int64_t>(sdk::bytes_of(shape.dtype))).data();
    };
    Scratch scratch{};
    NewtonSchulzSpace& m = scratch.matrices;
    m.x = take_matrices(shape.rows, shape.cols);
    m.other = take_matrices(shape.rows, shape.cols);
    m.gram = take_matrices(shape.small(), shape.small());
    m.polynomial = take_matrices(shape.small(), shape.small());
    m.workspace = space.take<char>(BatchedProduct::workspace).data();
    scratch.squares = space.take<double>(std::int64_t{shape.count} * muon_parts).data();
    return scratch;
  }

  CublasLt library_;
  std::deque<Plan> plans_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("optimizer-cuda", "0.1.0", fvlm::plugins::Adamw, fvlm::plugins::Muon)
