// plugin.cpp: torch.optim.Muon for the matrices of flat buffers, on the CPU.
#include "common/tasks.h"
#include "muon_loops.h"
#include "newton_schulz.h"

#include <algorithm>
#include <cmath>

namespace fvlm::plugins {
namespace {

using sdk::Support, sdk::States, sdk::Failure;

constexpr std::int64_t tiles_per_task = 8; // of one row of tiles

// The hyperparameters of a parameter group.
struct Settings {
  float momentum, one_minus_momentum, epsilon;
  double lr, weight_decay;
  bool nesterov, match_rms;
  int steps;
  float coefficients[3];

  double step_size(std::int64_t rows, std::int64_t cols) const {
    const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
    return lr * (match_rms ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c)));
  }
};

// Splits a matrix into tiles, and rows of tiles into tasks.
struct Tiling {
  std::int64_t rows, cols;

  std::int64_t across() const { return (cols + tile_side * tiles_per_task - 1) / (tile_side * tiles_per_task); }
  std::int64_t tasks() const { return (rows + tile_side - 1) / tile_side * across(); }

  // Calls visit(row, rows, column, columns) for each tile of a task.
  template <class Visit>
  void for_each_tile(std::int64_t task, const Visit& visit) const {
    const std::int64_t row = task / across() * tile_side, begin = task % across() * tiles_per_task * tile_side;
    const std::int64_t height = std::min(tile_side, rows - row),
                       end = std::min(cols, begin + tiles_per_task * tile_side);
    for (std::int64_t column = begin; column < end; column += tile_side) {
      visit(row, height, column, std::min(tile_side, end - column));
    }
  }
};

class Muon : public sdk::Optimizer {
 public:
  static constexpr const char* algorithm = "muon";
  // The first five are those that the ABI requires, the others those of torch.optim.Muon.
  static constexpr fvlm_hyperparameter hyperparameters[] = {
      {"lr", 1e-3, 0, 1e3},
      {"momentum", 0.95, 0, 0.9999999},
      {"nesterov", 1, 0, 1},
      {"weight_decay", 0.1, 0, 1e3},
      {"eps", 1e-7, 0, 1e-1},
      {"newton_schulz_steps", 5, 0, 99},
      {"newton_schulz_a", 3.4445, -100, 100},
      {"newton_schulz_b", -4.7750, -100, 100},
      {"newton_schulz_c", 2.0315, -100, 100},
      {"match_rms_adamw", 0, 0, 1},
  };

  explicit Muon(const fvlm_instance_config&) : level_(cpu_level()), kernels_(newton_schulz_kernels(level_)) {}

  static Support supports(const Query& query) {
    if (query.device.type != FVLM_CPU) return sdk::refuse("runs on the CPU only");
    if (Support no = fits_arena(query); no.score == 0) return no;
    for (std::int64_t i = 0; i < query.segment_count; ++i) {
      if (query.segments[i].rows == 1) {
        return sdk::refuse("segment %lld is a vector: muon updates matrices only; use adamw for vectors",
                           static_cast<long long>(i));
      }
    }
    return sdk::accept(100, "Newton-Schulz in float32 by tiles, %s", name_of(cpu_level()));
  }

  static States states(const Query& query) {
    const bool bfloat16_moments = query.state_dtype == sdk::bfloat16;
    return {{"momentum", bfloat16_moments ? sdk::bfloat16 : sdk::float32}};
  }

  void requirements(const Query& query, sdk::Requirements& requirements) const {
    sdk::require(supports(query));
    for (std::int64_t i = 0; i < query.segment_count; ++i) {
      sdk::Workspace space;
      (void)take(space, query.segments[i]);
      requirements.forward_workspace = std::max<std::uint64_t>(requirements.forward_workspace, space.used());
    }
  }

  void step(const fvlm_call& call, const Query& query, const Step& arguments) {
    sdk::Requirements required;
    requirements(query, required);
    if (call.workspace_size < required.forward_workspace) { // checked before anything is written
      throw Failure(FVLM_ERROR_WORKSPACE, "expected a workspace of at least %llu bytes but got %llu",
                    static_cast<unsigned long long>(required.forward_workspace),
                    static_cast<unsigned long long>(call.workspace_size));
    }
    const StepScalars scalars(query, arguments, std::size(hyperparameters));
    if (scalars.skip) return;
    with_element_types(query, states(query).state[0].dtype, [&]<class Gradient, class Copy, class Moment>() {
      step_all<Gradient, Copy, Moment>(call, query, arguments, scalars);
    });
  }

 private:
  struct Scratch {
    NewtonSchulzSpace space;
    sdk::Span<double> squares; // sum of squares per task
  };

  static Scratch take(sdk::Workspace& workspace, const fvlm_optimizer_segment& segment) {
    const std::int64_t small = std::min(segment.rows, segment.cols), large = std::max(segment.rows, segment.cols);
    const auto panels = [&](std::int64_t rows) {
      Panels allocated{nullptr, rows, small};
      allocated.data = workspace.take<float>(allocated.size()).data();
      return allocated;
    };
    NewtonSchulzSpace space{panels(large), panels(large), panels(small), panels(small)};
    return {space, workspace.take<double>(Tiling{segment.rows, segment.cols}.tasks())};
  }

  template <class Gradient, class Copy, class Moment>
  void step_all(const fvlm_call& call, const Query& query, const Step& arguments, const StepScalars& scalars) const {
    const std::int64_t n = query.elements;
    float* master = flat<float>(arguments.master, "master", n);
    Copy* copy = nullptr;
    if constexpr (!std::is_same_v<Copy, NoCopy>) copy = flat<Copy>(arguments.parameter, "parameter", n);
    const Gradient* gradient = flat<const Gradient>(arguments.gradient, "gradient", n);
    Moment* moment = flat<Moment>(arguments.state[0], "momentum", n);
    for (std::int64_t i = 0; i < query.segment_count; ++i) {
      const fvlm_optimizer_segment& segment = query.segments[i];
      if (size_of(segment) == 0) continue;
      const Settings settings = settings_of(scalars, segment.group);
      sdk::Workspace workspace(call);
      Scratch scratch = take(workspace, segment);
      const std::int64_t at = segment.offset;
      const float norm = update_momentum(call, segment, settings, scalars.scale, gradient + at, moment + at, scratch);
      normalize(call, settings, norm, scratch.space.y);
      newton_schulz(kernels_, call.host, scratch.space, settings.coefficients, settings.steps);
      apply(call, segment, settings, scratch.space.y, master + at, copy ? copy + at : nullptr);
    }
  }

  static Settings settings_of(const StepScalars& scalars, std::int64_t group) {
    const float* h = scalars.hyper + group * static_cast<std::int64_t>(std::size(hyperparameters));
    Settings s{};
    s.lr = h[0];
    s.momentum = h[1];
    s.one_minus_momentum = static_cast<float>(1 - static_cast<double>(h[1]));
    s.nesterov = h[2] != 0;
    s.weight_decay = h[3];
    s.epsilon = h[4];
    s.steps = static_cast<int>(std::clamp(h[5], 0.0f, 99.0f));
    std::copy_n(h + 6, 3, s.coefficients);
    s.match_rms = h[9] != 0;
    return s;
  }

  // Updates the momentum and writes the matrix to orthogonalize, as panels; returns the norm of that matrix.
  template <class Gradient, class Moment>
  float update_momentum(const fvlm_call& call, const fvlm_optimizer_segment& segment, const Settings& settings,
                        float scale, const Gradient* gradient, Moment* moment, const Scratch& scratch) const {
    using Kernel = MomentumKernel<Gradient, Moment>;
    const auto kernel = for_level<Kernel>(level_);
    const Tiling tiling{segment.rows, segment.cols};
    const bool tall = segment.rows > segment.cols;
    const Panels& y = scratch.space.y;
    run_tasks(call.host, tiling.tasks(), [&](int, std::int64_t task) {
      double squares = 0;
      tiling.for_each_tile(task, [&](std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
        alignas(64) float tile[tile_side * tile_side];
        const std::int64_t at = row * segment.cols + column;
        float* out = tall ? y.at(column / panel_width, row) : tile;
        kernel({rows, columns, segment.cols, gradient + at, moment + at, out, scale, settings.momentum,
                settings.one_minus_momentum, settings.nesterov});
        squares += kernels_.sum_of_squares(out, rows, columns);
        if (!tall) kernels_.transpose(tile, rows, columns, y.at(row / panel_width, column));
      });
      scratch.squares[static_cast<std::size_t>(task)] = squares;
    });
    double squares = 0;
    for (const double part : scratch.squares) squares += part;
    return static_cast<float>(std::sqrt(squares));
  }

  void normalize(const fvlm_call& call, const Settings& settings, float norm, const Panels& y) const {
    const auto kernel = for_level<DivideKernel>(level_);
    const float divisor = norm < settings.epsilon ? settings.epsilon : norm; // NaN stays NaN
    sdk::parallel_for(call.host, y.size(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      kernel({y.data + begin, end - begin, divisor});
    });
  }

  template <class Copy>
  void apply(const fvlm_call& call, const fvlm_optimizer_segment& segment, const Settings& settings, const Panels& y,
             float* master, Copy* copy) const {
    using Kernel = ApplyKernel<Copy>;
    const auto kernel = for_level<Kernel>(level_);
    const Tiling tiling{segment.rows, segment.cols};
    const bool tall = segment.rows > segment.cols;
    const auto decay_factor = static_cast<float>(1 - settings.lr * settings.weight_decay);
    const auto step = static_cast<float>(settings.step_size(segment.rows, segment.cols));
    run_tasks(call.host, tiling.tasks(), [&](int, std::int64_t task) {
      tiling.for_each_tile(task, [&](std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
        alignas(64) float tile[tile_side * tile_side];
        if (!tall) kernels_.transpose(y.at(row / panel_width, column), columns, rows, tile);
        const std::int64_t at = row * segment.cols + column;
        kernel({rows, columns, segment.cols, master + at, copy ? copy + at : nullptr,
                tall ? y.at(column / panel_width, row) : tile, decay_factor, step});
      });
    });
  }

  CpuLevel level_;
  const NewtonSchulzKernels& kernels_;
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("optimizer-muon", "1.0.0", fvlm::plugins::Muon)
