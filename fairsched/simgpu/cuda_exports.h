/* SPDX-License-Identifier: Apache-2.0 */
/* Every export of the stand-in: X(exported name, implementation after the prefix sim_). */
#ifndef CUDA_EXPORTS_H
#define CUDA_EXPORTS_H

/* Those with the usual cmpl/je/jmp stub. */
/* Laid out by hand: the formatter makes one line of it. */
/* clang-format off */
#define CUDA_EXPORTS(X) \
  X(cuInit, cuInit) X(cuDriverGetVersion, cuDriverGetVersion) X(cuDeviceGet, cuDeviceGet)                   \
  X(cuDeviceGetCount, cuDeviceGetCount) X(cuDeviceGetName, cuDeviceGetName)                                 \
  X(cuDeviceGetUuid, cuDeviceGetUuid) X(cuDeviceGetUuid_v2, cuDeviceGetUuid_v2)                                \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute) X(cuDeviceTotalMem_v2, cuDeviceTotalMem_v2)                 \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2) X(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId)                      \
  X(cuGetErrorName, cuGetErrorName) X(cuGetErrorString, cuGetErrorString) X(cuCtxCreate, cuCtxCreate_v2)    \
  X(cuCtxCreate_v2, cuCtxCreate_v2) X(cuCtxCreate_v3, cuCtxCreate_v3) X(cuCtxDestroy, cuCtxDestroy_v2)      \
  X(cuCtxDestroy_v2, cuCtxDestroy_v2) X(cuCtxSetCurrent, cuCtxSetCurrent)                                   \
  X(cuCtxGetCurrent, cuCtxGetCurrent) X(cuCtxPushCurrent, cuCtxPushCurrent_v2)                              \
  X(cuCtxPushCurrent_v2, cuCtxPushCurrent_v2) X(cuCtxPopCurrent, cuCtxPopCurrent_v2)                        \
  X(cuCtxPopCurrent_v2, cuCtxPopCurrent_v2) X(cuCtxGetDevice, cuCtxGetDevice)                               \
  X(cuCtxGetFlags, cuCtxGetFlags) X(cuCtxGetApiVersion, cuCtxGetApiVersion)                                 \
  X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange) X(cuCtxSynchronize, cuCtxSynchronize)         \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                                                     \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)                                                \
  X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease_v2)                                             \
  X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2)                                                    \
  X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset_v2)                                                 \
  X(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2)                                              \
  X(cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags_v2)                                           \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState) X(cuStreamCreate, cuStreamCreate)               \
  X(cuStreamCreateWithPriority, cuStreamCreateWithPriority) X(cuStreamDestroy, cuStreamDestroy_v2)          \
  X(cuStreamDestroy_v2, cuStreamDestroy_v2) X(cuEventCreate, cuEventCreate)                                 \
  X(cuEventDestroy, cuEventDestroy_v2) X(cuEventDestroy_v2, cuEventDestroy_v2)                              \
  X(cuEventQuery, cuEventQuery) X(cuEventSynchronize, cuEventSynchronize)                                   \
  X(cuEventElapsedTime, cuEventElapsedTime) X(cuEventElapsedTime_v2, cuEventElapsedTime)                    \
  X(cuModuleLoadData, cuModuleLoadData) X(cuModuleGetFunction, cuModuleGetFunction)                         \
  X(cuModuleUnload, cuModuleUnload) X(cuGraphCreate, cuGraphCreate) X(cuGraphDestroy, cuGraphDestroy)       \
  X(cuGraphExecDestroy, cuGraphDestroy) X(cuGraphAddKernelNode, cuGraphAddKernelNode)                       \
  X(cuGraphAddKernelNode_v2, cuGraphAddKernelNode) X(cuGraphInstantiate, cuGraphInstantiate_v2)             \
  X(cuGraphInstantiate_v2, cuGraphInstantiate_v2)                                                           \
  X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags) X(cuMemAlloc, cuMemAlloc_v2)                  \
  X(cuMemAlloc_v2, cuMemAlloc_v2) X(cuMemFree, cuMemFree_v2) X(cuMemFree_v2, cuMemFree_v2)                  \
  X(cuMemGetInfo, cuMemGetInfo_v2) X(cuMemGetInfo_v2, cuMemGetInfo_v2) X(cuMemHostAlloc, cuMemHostAlloc)    \
  X(cuMemAllocHost, cuMemAllocHost_v2) X(cuMemAllocHost_v2, cuMemAllocHost_v2)                              \
  X(cuMemFreeHost, cuMemFreeHost) X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2)                \
  X(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer_v2) X(cuGetProcAddress, cuGetProcAddress)       \
  X(cuGetProcAddress_v2, cuGetProcAddress_v2) X(cuStreamSynchronize, cuStreamSynchronize)                   \
  X(cuStreamSynchronize_ptsz, cuStreamSynchronize_ptsz) X(cuStreamQuery, cuStreamQuery)                     \
  X(cuStreamQuery_ptsz, cuStreamQuery_ptsz) X(cuStreamWaitEvent, cuStreamWaitEvent)                         \
  X(cuStreamWaitEvent_ptsz, cuStreamWaitEvent_ptsz) X(cuStreamGetCtx, cuStreamGetCtx)                       \
  X(cuStreamGetCtx_ptsz, cuStreamGetCtx_ptsz) X(cuStreamGetFlags, cuStreamGetFlags)                         \
  X(cuStreamGetFlags_ptsz, cuStreamGetFlags_ptsz) X(cuStreamGetPriority, cuStreamGetPriority)               \
  X(cuStreamGetPriority_ptsz, cuStreamGetPriority_ptsz) X(cuStreamEndCapture, cuStreamEndCapture)           \
  X(cuStreamEndCapture_ptsz, cuStreamEndCapture_ptsz) X(cuStreamIsCapturing, cuStreamIsCapturing)           \
  X(cuStreamIsCapturing_ptsz, cuStreamIsCapturing_ptsz) X(cuEventRecord, cuEventRecord)                     \
  X(cuEventRecord_ptsz, cuEventRecord_ptsz) X(cuEventRecordWithFlags, cuEventRecordWithFlags)               \
  X(cuEventRecordWithFlags_ptsz, cuEventRecordWithFlags_ptsz) X(cuLaunchKernel, cuLaunchKernel)             \
  X(cuLaunchKernel_ptsz, cuLaunchKernel_ptsz) X(cuLaunchKernelEx, cuLaunchKernelEx)                         \
  X(cuLaunchKernelEx_ptsz, cuLaunchKernelEx_ptsz) X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel)   \
  X(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel_ptsz) X(cuLaunchHostFunc, cuLaunchHostFunc)   \
  X(cuLaunchHostFunc_ptsz, cuLaunchHostFunc_ptsz) X(cuGraphLaunch, cuGraphLaunch)                           \
  X(cuGraphLaunch_ptsz, cuGraphLaunch_ptsz) X(cuMemAllocAsync, cuMemAllocAsync)                             \
  X(cuMemAllocAsync_ptsz, cuMemAllocAsync_ptsz) X(cuMemFreeAsync, cuMemFreeAsync)                           \
  X(cuMemFreeAsync_ptsz, cuMemFreeAsync_ptsz) X(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2)           \
  X(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2_ptsz)                                             \
  X(cuStreamWaitValue32, cuStreamWaitValue32) X(cuStreamWaitValue32_ptsz, cuStreamWaitValue32_ptsz)         \
  X(cuStreamWaitValue32_v2, cuStreamWaitValue32) X(cuStreamWaitValue32_v2_ptsz, cuStreamWaitValue32_ptsz)   \
  X(cuStreamWriteValue32, cuStreamWriteValue32) X(cuStreamWriteValue32_ptsz, cuStreamWriteValue32_ptsz)     \
  X(cuStreamWriteValue32_v2, cuStreamWriteValue32)                                                          \
  X(cuStreamWriteValue32_v2_ptsz, cuStreamWriteValue32_ptsz) X(cuStreamBatchMemOp, cuStreamBatchMemOp)      \
  X(cuStreamBatchMemOp_ptsz, cuStreamBatchMemOp_ptsz) X(cuStreamBatchMemOp_v2, cuStreamBatchMemOp)          \
  X(cuStreamBatchMemOp_v2_ptsz, cuStreamBatchMemOp_ptsz) X(cuMemcpyHtoD, cuMemcpyHtoD)                      \
  X(cuMemcpyHtoD_v2, cuMemcpyHtoD) X(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_pt)                                 \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync) X(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync)                        \
  X(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_pt) X(cuMemcpyDtoH, cuMemcpyDtoH)                          \
  X(cuMemcpyDtoH_v2, cuMemcpyDtoH) X(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_pt)                                 \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync) X(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync)                        \
  X(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_pt) X(cuMemcpyDtoD, cuMemcpyDtoD)                          \
  X(cuMemcpyDtoD_v2, cuMemcpyDtoD) X(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_pt)                                 \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync) X(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync)                        \
  X(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_pt) X(cuMemcpy, cuMemcpy) X(cuMemcpy_ptds, cuMemcpy_pt)    \
  X(cuMemcpyAsync, cuMemcpyAsync) X(cuMemcpyAsync_ptsz, cuMemcpyAsync_pt)                                   \
  X(cuMemcpyPeerAsync, cuMemcpyPeerAsync) X(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync_pt)                   \
  X(cuMemsetD8Async, cuMemsetD8Async) X(cuMemsetD8Async_ptsz, cuMemsetD8Async_pt)                           \
  X(cuMemsetD32Async, cuMemsetD32Async) X(cuMemsetD32Async_ptsz, cuMemsetD32Async_pt)                       \
  X(cuMemPrefetchAsync, cuMemPrefetchAsync) X(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync_pt)               \
  X(cuGetExportTable, cuGetExportTable) CUDA_LATER_EXPORTS(X)

/* What unmodified programs of numba-cuda, cuda-bindings and cuda.core ask for besides. */
#define CUDA_LATER_EXPORTS(X) \
  X(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId)                                                         \
  X(cuDeviceComputeCapability, cuDeviceComputeCapability) X(cuDeviceGetLuid, cuDeviceGetLuid)             \
  X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer) X(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute)     \
  X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool) X(cuDeviceGetMemPool, cuDeviceGetMemPool)       \
  X(cuDeviceSetMemPool, cuDeviceSetMemPool) X(cuCtxCreate_v4, cuCtxCreate_v4)                             \
  X(cuCtxGetLimit, cuCtxGetLimit) X(cuCtxSetLimit, cuCtxSetLimit)                                         \
  X(cuCtxGetCacheConfig, cuCtxGetCacheConfig) X(cuCtxSetCacheConfig, cuCtxSetCacheConfig)                 \
  X(cuCtxGetSharedMemConfig, cuCtxGetSharedMemConfig)                                                     \
  X(cuCtxSetSharedMemConfig, cuCtxSetSharedMemConfig)                                                     \
  X(cuCtxResetPersistingL2Cache, cuCtxResetPersistingL2Cache) X(cuCtxSetFlags, cuCtxSetFlags)             \
  X(cuCtxGetId, cuCtxGetId) X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess)                               \
  X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess) X(cuProfilerStart, cuProfilerStart)                   \
  X(cuProfilerStop, cuProfilerStop) X(cuModuleLoad, cuModuleLoad)                                         \
  X(cuModuleLoadDataEx, cuModuleLoadDataEx) X(cuModuleGetLoadingMode, cuModuleGetLoadingMode)             \
  X(cuModuleGetFunctionCount, cuModuleGetFunctionCount)                                                   \
  X(cuModuleEnumerateFunctions, cuModuleEnumerateFunctions) X(cuModuleLoadFatBinary, cuModuleLoadData)    \
  X(cuModuleGetGlobal, cuModuleGetGlobal_v2) X(cuModuleGetGlobal_v2, cuModuleGetGlobal_v2)                \
  X(cuLibraryLoadData, cuLibraryLoadData) X(cuLibraryLoadFromFile, cuLibraryLoadFromFile)                 \
  X(cuLibraryUnload, cuLibraryUnload) X(cuLibraryGetModule, cuLibraryGetModule)                           \
  X(cuLibraryGetKernel, cuModuleGetFunction) X(cuLibraryGetKernelCount, cuModuleGetFunctionCount)         \
  X(cuLibraryEnumerateKernels, cuModuleEnumerateFunctions) X(cuLibraryGetGlobal, cuModuleGetGlobal_v2)    \
  X(cuLibraryGetManaged, cuModuleGetGlobal_v2) X(cuKernelGetFunction, cuKernelGetFunction)                \
  X(cuKernelGetAttribute, cuKernelGetAttribute) X(cuKernelSetAttribute, cuKernelSetAttribute)             \
  X(cuKernelSetCacheConfig, cuKernelSetCacheConfig) X(cuFuncGetAttribute, cuFuncGetAttribute)             \
  X(cuFuncSetAttribute, cuFuncSetAttribute) X(cuFuncSetCacheConfig, cuFuncSetCacheConfig)                 \
  X(cuFuncSetSharedMemConfig, cuFuncSetSharedMemConfig) X(cuFuncGetName, cuFuncGetName)                   \
  X(cuFuncGetModule, cuFuncGetModule) X(cuFuncGetParamInfo, cuFuncGetParamInfo)                           \
  X(cuFuncLoad, cuFuncLoad) X(cuFuncIsLoaded, cuFuncIsLoaded) X(cuKernelGetName, cuFuncGetName)           \
  X(cuKernelGetLibrary, cuFuncGetModule) X(cuKernelGetParamInfo, cuFuncGetParamInfo)                      \
  X(cuLinkCreate, cuLinkCreate_v2) X(cuLinkCreate_v2, cuLinkCreate_v2)                                    \
  X(cuLinkAddData, cuLinkAddData_v2) X(cuLinkAddData_v2, cuLinkAddData_v2)                                \
  X(cuLinkAddFile, cuLinkAddFile_v2) X(cuLinkAddFile_v2, cuLinkAddFile_v2)                                \
  X(cuLinkComplete, cuLinkComplete) X(cuLinkDestroy, cuLinkDestroy)                                       \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor)             \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)\
  X(cuOccupancyMaxPotentialBlockSize, cuOccupancyMaxPotentialBlockSize)                                   \
  X(cuOccupancyMaxPotentialBlockSizeWithFlags, cuOccupancyMaxPotentialBlockSizeWithFlags)                 \
  X(cuOccupancyAvailableDynamicSMemPerBlock, cuOccupancyAvailableDynamicSMemPerBlock)                     \
  X(cuOccupancyMaxPotentialClusterSize, cuOccupancyMaxPotentialClusterSize)                               \
  X(cuOccupancyMaxActiveClusters, cuOccupancyMaxActiveClusters) X(cuMemAllocManaged, cuMemAllocManaged)   \
  X(cuMemAllocPitch, cuMemAllocPitch_v2) X(cuMemAllocPitch_v2, cuMemAllocPitch_v2)                        \
  X(cuMemHostRegister, cuMemHostRegister_v2) X(cuMemHostRegister_v2, cuMemHostRegister_v2)                \
  X(cuMemHostUnregister, cuMemHostUnregister) X(cuMemHostGetFlags, cuMemHostGetFlags)                     \
  X(cuMemGetAddressRange, cuMemGetAddressRange_v2) X(cuMemGetAddressRange_v2, cuMemGetAddressRange_v2)    \
  X(cuPointerGetAttribute, cuPointerGetAttribute) X(cuPointerGetAttributes, cuPointerGetAttributes)       \
  X(cuPointerSetAttribute, cuPointerSetAttribute) X(cuMemAdvise, cuMemAdvise)                             \
  X(cuMemAdvise_v2, cuMemAdvise_v2) X(cuMemPoolCreate, cuMemPoolCreate)                                   \
  X(cuMemPoolDestroy, cuMemPoolDestroy) X(cuMemPoolTrimTo, cuMemPoolTrimTo)                               \
  X(cuMemPoolSetAttribute, cuMemPoolSetAttribute) X(cuMemPoolGetAttribute, cuMemPoolGetAttribute)         \
  X(cuMemPoolSetAccess, cuMemPoolSetAccess) X(cuMemPoolGetAccess, cuMemPoolGetAccess)                     \
  X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync)                                                     \
  X(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync_ptsz) X(cuStreamGetId, cuStreamGetId)           \
  X(cuStreamGetId_ptsz, cuStreamGetId_ptsz) X(cuStreamGetDevice, cuStreamGetDevice)                       \
  X(cuStreamGetDevice_ptsz, cuStreamGetDevice_ptsz) X(cuStreamAddCallback, cuStreamAddCallback)           \
  X(cuStreamAddCallback_ptsz, cuStreamAddCallback_ptsz)                                                   \
  X(cuStreamAttachMemAsync, cuStreamAttachMemAsync)                                                       \
  X(cuStreamAttachMemAsync_ptsz, cuStreamAttachMemAsync_ptsz)                                             \
  X(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2)                                                 \
  X(cuStreamGetCaptureInfo_v2_ptsz, cuStreamGetCaptureInfo_v2_ptsz)                                       \
  X(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3)                                                 \
  X(cuStreamGetCaptureInfo_v3_ptsz, cuStreamGetCaptureInfo_v3_ptsz)                                       \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode)                                 \
  X(cuGraphClone, cuGraphClone) \
  X(cuUserObjectCreate, cuUserObjectCreate) X(cuUserObjectRetain, cuUserObjectRetain) \
  X(cuUserObjectRelease, cuUserObjectRelease) X(cuGraphRetainUserObject, cuGraphRetainUserObject)     \
  X(cuGraphReleaseUserObject, cuGraphReleaseUserObject) X(cuGraphUpload, cuGraphUpload)                   \
  X(cuGraphUpload_ptsz, cuGraphUpload_ptsz)                                                               \
  X(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams)                                           \
  X(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams_ptsz) X(cuMemcpy2D, cuMemcpy2D)       \
  X(cuMemcpy2D_v2, cuMemcpy2D) X(cuMemcpy2D_v2_ptds, cuMemcpy2D_pt) X(cuMemcpy2DUnaligned, cuMemcpy2D)    \
  X(cuMemcpy2DUnaligned_v2, cuMemcpy2D) X(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2D_pt)                     \
  X(cuMemcpy3D, cuMemcpy3D) X(cuMemcpy3D_v2, cuMemcpy3D) X(cuMemcpy3D_v2_ptds, cuMemcpy3D_pt)             \
  X(cuMemcpy2DAsync, cuMemcpy2DAsync) X(cuMemcpy2DAsync_v2, cuMemcpy2DAsync)                              \
  X(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync_pt) X(cuMemcpy3DAsync, cuMemcpy3DAsync)                      \
  X(cuMemcpy3DAsync_v2, cuMemcpy3DAsync) X(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync_pt)                   \
  X(cuMemcpyPeer, cuMemcpyPeer) X(cuMemcpyPeer_ptds, cuMemcpyPeer_pt)                                     \
  X(cuMemsetD16Async, cuMemsetD16Async) X(cuMemsetD16Async_ptsz, cuMemsetD16Async_pt)                     \
  X(cuMemsetD2D8Async, cuMemsetD2D8Async) X(cuMemsetD2D8Async_ptsz, cuMemsetD2D8Async_pt)                 \
  X(cuMemsetD2D16Async, cuMemsetD2D16Async) X(cuMemsetD2D16Async_ptsz, cuMemsetD2D16Async_pt)             \
  X(cuMemsetD2D32Async, cuMemsetD2D32Async) X(cuMemsetD2D32Async_ptsz, cuMemsetD2D32Async_pt)             \
  X(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2)                                                         \
  X(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync_v2_pt)

/* The synchronous memsets start otherwise in the real library, and so here. */
#define CUDA_PLAIN_EXPORTS(X) \
  X(cuMemsetD8, cuMemsetD8) X(cuMemsetD8_v2, cuMemsetD8) X(cuMemsetD8_v2_ptds, cuMemsetD8_pt)               \
  X(cuMemsetD32, cuMemsetD32) X(cuMemsetD32_v2, cuMemsetD32) X(cuMemsetD32_v2_ptds, cuMemsetD32_pt)              \
  X(cuMemsetD16, cuMemsetD16) X(cuMemsetD16_v2, cuMemsetD16) X(cuMemsetD16_v2_ptds, cuMemsetD16_pt)       \
  X(cuMemsetD2D8, cuMemsetD2D8) X(cuMemsetD2D8_v2, cuMemsetD2D8)                                          \
  X(cuMemsetD2D8_v2_ptds, cuMemsetD2D8_pt) X(cuMemsetD2D16, cuMemsetD2D16)                                \
  X(cuMemsetD2D16_v2, cuMemsetD2D16) X(cuMemsetD2D16_v2_ptds, cuMemsetD2D16_pt)                           \
  X(cuMemsetD2D32, cuMemsetD2D32) X(cuMemsetD2D32_v2, cuMemsetD2D32)                                      \
  X(cuMemsetD2D32_v2_ptds, cuMemsetD2D32_pt)

/* clang-format on */
#endif
