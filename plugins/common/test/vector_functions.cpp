// vector_functions.cpp: compiled once per instruction set, into the tables that vector_math_test.cpp reads.
#include "common/test/vector_functions.h"

#include "common/vector_math.h"

namespace fvlm::plugins::FVLM_LEVEL {
namespace {

template <Vector (*function)(Vector)>
void map(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; i += lanes) store(y + i, function(load(x + i)));
}

template <bool of_sine>
void turn(const float* x, int64_t count, float* y) {
  for (int64_t i = 0; i < count; i += lanes) {
    const Vector turned = load(x + i), nearest = (turned + 12582912.0f) - 12582912.0f;
    Vector sine, cosine;
    sin_cos(turned - nearest, __builtin_convertvector(nearest, Integers), sine, cosine);
    store(y + i, of_sine ? sine : cosine);
  }
}

} // namespace

const VectorFunctions& vector_functions() {
  static constexpr VectorFunctions functions{&map<exp2>,       &map<exp>,   &map<sigmoid>, &map<tanh>,
                                             &map<normal_cdf>, &turn<true>, &turn<false>};
  return functions;
}

} // namespace fvlm::plugins::FVLM_LEVEL
