/** Handles of picked files, which let the page read the same file again after a reload. They need IndexedDB. */

const DATABASE = "rullama-train";
const STORE = "handles";

/** Runs one request on the store. */
async function on<T>(mode: IDBTransactionMode, ask: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const database = await new Promise<IDBDatabase>((resolve, reject) => {
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
  try {
    return await new Promise<T>((resolve, reject) => {
      const request = ask(database.transaction(STORE, mode).objectStore(STORE));
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  } finally {
    database.close();
  }
}

export const keepHandle = (key: string, handle: FileSystemFileHandle) => on("readwrite", (store) => store.put(handle, key));

export const keptHandle = (key: string) =>
  on<FileSystemFileHandle | undefined>("readonly", (store) => store.get(key) as IDBRequest<FileSystemFileHandle | undefined>);

export const forgetHandles = () => on("readwrite", (store) => store.clear());
