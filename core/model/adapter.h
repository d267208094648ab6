// Adapters in a model: their parameters stand behind those of the part, and each adapted weight points to its own.
// Operations::linear adds what they contribute; encoders and decoders know nothing of them.
#pragma once
#include "model/parameters.h"
#include "model/weights/adapter.h"
#include "ops/adapter.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fvlm::model {

// By the part's name in the model: "vision", "decoder", "decoder2".
using Adapters = std::map<std::string, fvlm::PartAdapter>;

// The blocks of a model and its adapters.
std::vector<ParameterBlock> with_adapters(std::vector<ParameterBlock> blocks, const Adapters& adapters);

// By a parameter's name in the model: whether it is A, B or a magnitude; and whether it is a frozen weight below
// adapters.
bool is_of_adapter(const std::string& name);
bool is_in_base(const Adapters& adapters, const std::string& name);

// The rank of a weight's adapter that can be computed in one product with it; 0: none, or it has dropout or a
// magnitude.
int64_t joined_rank(const Adapters& adapters, const std::string& name);

bool has_dropout(const Adapters& adapters);

// Tells the parameters what with_adapters() added. `dropout_seed`: int64, a scalar.
void attach_adapters(Parameters& parameters, const Adapters& adapters, const at::Tensor& dropout_seed);

// The decoder's adapters are those of several, as MixedAdapter has them: each row keeps the columns of its own.
void mix_adapters(Parameters& parameters, const std::map<std::string, std::vector<int32_t>>& owners,
                  const std::shared_ptr<ops::RowAdapters>& rows);

// The numbers of a parameter, quantized or not.
at::Tensor dequantized(const ops::Parameter& parameter);

// DoRA's magnitudes as they begin: the norms of the frozen rows.
void initialize_magnitudes(Parameters& parameters, const Adapters& adapters);

} // namespace fvlm::model
