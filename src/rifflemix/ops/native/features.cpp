// Reports the instruction set that the dispatched kernels use on this processor.

#include "kernels.h"

RIFFLEMIX_EXPORT int rifflemix_instruction_level() { return rifflemix::level(); }

RIFFLEMIX_EXPORT int rifflemix_interface() { return RIFFLEMIX_INTERFACE; }
