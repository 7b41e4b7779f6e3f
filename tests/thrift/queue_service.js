// A client of the QueueService, on the code that the Thrift compiler makes of the interface.
const thrift = require("thrift");
const QueueService = require("./QueueService.js");
const types = require("./queue_service_types.js");

const connection = thrift.createConnection("127.0.0.1", Number(process.argv[2]), {
  transport: thrift.TFramedTransport,
  protocol: thrift.TBinaryProtocol,
});
const client = thrift.createClient(QueueService, connection);

async function main() {
  for (const item of ["one", "two"]) {
    const request = new types.ProduceRequest({ item: Buffer.from(item), topic: "orders" });
    console.log(Number((await client.produce(request)).index));
  }
  const request = new types.ConsumeRequest({ topic: "orders", fanoutId: "billing", maxFetchSize: 1000 });
  console.log((await client.consume(request)).itemList.join(","));
  const code = (await client.consume(request)).result.errorCode;
  console.log(Object.keys(types.ErrorCode).find((name) => types.ErrorCode[name] === code));
  console.log((await client.listTopics(new types.ListTopicsRequest({}))).topics.join(","));
}

main().then(() => connection.end(), (error) => {
  console.error(error);
  process.exit(1);
});
