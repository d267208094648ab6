/* fvlm/fvlm.h: the whole SDK for plugins in C. */
#ifndef FVLM_FVLM_H
#define FVLM_FVLM_H

#include <fvlm/abi.h>
#include <fvlm/attention.h>
#include <fvlm/kernels.h>
#include <fvlm/loss.h>
#include <fvlm/optimizer.h>
#include <fvlm/packer.h>
#include <fvlm/quantizer.h>
#include <fvlm/video.h>

#endif
