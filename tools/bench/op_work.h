// The minimal work of an operation: the bytes that it has to read and write, and its multiplications and additions.
#pragma once
#include "ops/call_observer.h"

#include <string>
#include <string_view>

namespace fvlm::bench {

struct MinimalWork {
  double bytes = 0, flops = 0;

  // Roofline time on a device with these rates, with copying and arithmetic overlapped.
  double seconds(double bytes_a_second, double flops_a_second) const;
  MinimalWork operator+(const MinimalWork& more) const { return {bytes + more.bytes, flops + more.flops}; }
};

// Each tensor counts once however often it is used; small sums and positions do not count. Only matrix products count
// as arithmetic.
struct Passes {
  MinimalWork forward, backward; // backward: zeros if there is none
};
Passes minimal_work(const fvlm_attention_query& query);
Passes minimal_work(const fvlm_paged_attention_query& query);
Passes minimal_work(const fvlm_loss_query& query);
Passes minimal_work(const fvlm_kernels_query& query);
Passes minimal_work(const fvlm_optimizer_query& query); // AdamW's
// The minimal work of one call whose tensors have so many bytes, each counted once; for an optimizer as above.
MinimalWork minimal_work(std::string_view operation, const ops::CalledQuery& query, double bytes);

std::string shape_of(const ops::CalledQuery& query);

} // namespace fvlm::bench
