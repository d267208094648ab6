#include "ops/optimizer.h"

#include "base/error.h"
#include "plugin/untrusted.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

namespace fvlm::ops {

namespace {

fvlm_optimizer_query with_segments(fvlm_optimizer_query query, const std::vector<fvlm_optimizer_segment>& segments) {
  query.segments = segments.data();
  query.segment_count = static_cast<int64_t>(segments.size());
  return query;
}

at::Tensor to_tensor(const std::vector<fvlm_optimizer_segment>& segments) {
  static_assert(sizeof(fvlm_optimizer_segment) == 4 * sizeof(int64_t));
  at::Tensor tensor = at::empty({static_cast<int64_t>(segments.size()), 4}, at::kLong);
  if (!segments.empty()) std::memcpy(tensor.data_ptr(), segments.data(), tensor.nbytes());
  return tensor;
}

} // namespace

Optimizer::Optimizer(Backend<fvlm_optimizer_v1> backend, const Query& query,
                     std::vector<fvlm_optimizer_segment> segments)
    : Optimizer(std::make_shared<const std::vector<fvlm_optimizer_segment>>(std::move(segments)), std::move(backend),
                query) {}

Optimizer::Optimizer(Segments segments, Backend<fvlm_optimizer_v1> chosen, const Query& query)
    : Prepared(std::move(chosen), with_segments(query, *segments)), segments_(std::move(segments)),
      device_segments_(to_tensor(*segments_).to(backend().device())) {}

std::span<const fvlm_hyperparameter> Optimizer::hyperparameters() const {
  return {backend().table().hyperparameters, static_cast<size_t>(backend().table().hyperparameter_count)};
}

at::Tensor Optimizer::default_hyperparameters() const {
  at::Tensor values = at::empty({query().group_count, static_cast<int64_t>(hyperparameters().size())}, at::kFloat);
  for (size_t index = 0; index < hyperparameters().size(); ++index)
    values.select(1, static_cast<int64_t>(index)).fill_(hyperparameters()[index].fallback);
  return values;
}

std::vector<Optimizer::State> Optimizer::make_states(std::span<const State> lent) const {
  std::array<fvlm_optimizer_state, FVLM_MAX_STATES> declared{};
  int32_t count = 0;
  detail::call_setup(backend().instance(), "optimizer", "states",
                     [&](fvlm_error*) { return count = backend().table().states(&query(), declared.data()), FVLM_OK; });
  if (count < 0 || count > FVLM_MAX_STATES)
    throw Error(ErrorKind::plugin, "optimizer: declares {} states; the limit is {}", count, FVLM_MAX_STATES)
        .at("plugin " + backend().plugin());
  std::vector<State> states;
  for (int32_t index = 0; index < count; ++index) {
    const auto name = bounded_string(declared[index].name, 64);
    if (!name || !is_known(declared[index].dtype))
      throw Error(ErrorKind::plugin, "optimizer: state {} has {}", index,
                  name ? "the dtype " + dtype_name(declared[index].dtype) : "no name")
          .at("plugin " + backend().plugin());
    const at::ScalarType type = scalar_type(declared[index].dtype);
    const auto place = static_cast<size_t>(index);
    const bool is_lent = place < lent.size() && lent[place].values.scalar_type() == type;
    states.push_back(
        {*name, is_lent ? lent[place].values
                        : at::zeros({query().elements}, at::TensorOptions().dtype(type).device(backend().device()))});
  }
  return states;
}

void Optimizer::step(const Arenas& arenas, const Control& control) const {
  static_assert(FVLM_MAX_STATES == FVLM_MAX_SAVED);
  BoundArguments<fvlm_optimizer_step> arguments;
  arguments.master = arguments.bind(arenas.master);
  arguments.parameter = arguments.bind(arenas.parameter);
  arguments.gradient = arguments.bind(arenas.gradient);
  arguments.bind(arguments.state, arenas.states);
  arguments.segments = arguments.bind(device_segments_);
  arguments.hyper = arguments.bind(control.hyperparameters);
  arguments.step = arguments.bind(control.step);
  arguments.scale = arguments.bind(control.scale);
  arguments.skip = arguments.bind(control.skip);
  run("optimizer step", backend().table().step, arguments);
}

} // namespace fvlm::ops
