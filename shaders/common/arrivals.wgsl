// The last of several workgroups to finish a part of a sum, which can read every value that the others have stored with `atomicStore`. The
// importer has `arrivals`, counters of finished parts that are 0 before and after.
var<workgroup> arrived: u32;

fn is_last(sum: u32, parts: u32, lane: u32) -> bool {
    storageBarrier();
    if lane == 0u {
        arrived = atomicAdd(&arrivals[sum], 1u) + 1u;
    }
    let last = workgroupUniformLoad(&arrived) == parts;
    storageBarrier();
    if last && lane == 0u {
        atomicStore(&arrivals[sum], 0u);
    }
    return last;
}
