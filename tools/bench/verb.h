// The subjects of `fvlm-engine bench`.
#pragma once
#include "cli/verb.h"

namespace fvlm::cli {

int bench_data(Arguments);
int bench_dpo(Arguments);
int bench_end_to_end(Arguments);
int bench_generate(Arguments);
int bench_op(Arguments);
int bench_profile(Arguments);
int bench_quant(Arguments);
int bench_ragged(Arguments);
int bench_serve(Arguments);
int bench_step(Arguments);

} // namespace fvlm::cli
