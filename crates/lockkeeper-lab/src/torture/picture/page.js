"use strict";
const D=/*DATA*/null;
const NS="http://www.w3.org/2000/svg",$=id=>document.getElementById(id),svg=$("chart"),
 about=$("about");
const AXIS=18,TOP=66,HEAD=18,ROW=18,GAP=6,FOOT=132,BARS_MAX=6000,
 LATE=new Set(["lost-update","lost-update-fenced","late-effect","stale-write-accepted",
 "stale-write-unfenced"]);
const SAYS={acq_inv:"asks",acq_ok:"gets it",acq_busy:"is refused",acq_timeout:"gives up",
 acq_unknown:"gets no answer",acq_failed:"fails",
 acq_cancelled:"leaves",enq_ok:"stands in line",rel_inv:"begins to give it back",
  rel_ok:"has given it back",rel_not_owner:"is refused: not its own",
 rel_unknown:"gets no answer to its release",rel_lost:"had lost it before",renew_inv:"renews",
  renew_ok:"is renewed",renew_lost:"learns that the hold no longer exists",
 lost_event:"learns that it is lost",check_inv:"looks whether it holds",
  check_ret:"says that it holds",convert_ok:"holds in another mode",eff_inv:"writes",
  eff_ret:"has written",
 res_read:"its read is accepted",res_write:"its write is accepted"};
let from=0,to=Math.max(D.length,1),only=null,chosen=null;

const wide=()=>svg.clientWidth||1200,left=()=>wide()<600?78:150;
const time=t=>(t/1e6).toFixed(to-from>2e6?2:to-from>2e4?4:6)+" s";
// Round times in view, as many as there is room for: 1, 2 or 5 and noughts apart.
function ticks(most){const raw=Math.max((to-from)/most,1),ten=10**Math.floor(Math.log10(raw)),
 step=[1,2,5,10].map(k=>k*ten).find(s=>s>=raw),all=[],
 digits=Math.max(0,Math.ceil(6-Math.log10(step)));
 for(let t=Math.ceil(from/step)*step;t<=to;t+=step)all.push([t,(t/1e6).toFixed(digits)+" s"]);
 return all}
const span=us=>us>=1e6?(us/1e6).toFixed(2)+" s":us>=1e3?(us/1e3).toFixed(us<1e4?2:us<1e5
 ?1:0)+" ms":us+" µs";
const shown=()=>only===null?D.rows.map((_,i)=>i):[only];
const color={exclusive:"var(--x)",shared:"var(--s)",permits:"var(--p)"};
const isExact=(a,b)=>D.exact.some(([x,y])=>a>=x&&b<=y);
function el(name,attrs,parent,text){const e=document.createElementNS(NS,name);
 for(const k in attrs)e.setAttribute(k,attrs[k]);if(text!==undefined)e.textContent=text;
 (parent||svg).appendChild(e);return e}
const cut=(text,room)=>text.length>room?"…"+text.slice(1-room):text;
// The kind stays when a name is cut: a semaphore and a lock may have one name.
const SHORT={semaphore:"sem ",election:"elect ",latch:"latch "};
const row=(text,room)=>{const [all,kind]=/^(semaphore|election|latch) /.exec(text)||["",""],
 short=SHORT[kind]||"";return text.length>room?short+cut(text.slice(all.length),
 room-short.length):text};

/* What a violation points at, by file and record. */
const key=(file,index)=>file+":"+index,
 marked=new Set(D.violations.filter(v=>!v.allowed).flatMap(v=>v.records.map(r=>key(r[0],r[1]))));

function head(){
 document.title=D.client+" on "+D.engine+": "+D.verdict.replace("-"," ")+" (lockkeeper torture)";
 $("whose").textContent=D.client+" on "+D.engine;
 const found=D.violations.filter(v=>!v.allowed).length,verdict=$("verdict");
  verdict.classList.add(D.verdict);
 verdict.textContent=D.verdict==="too-weak"?"too weak to say":D.verdict==="violations"&&found
  ?found+(found===1?" violation":" violations")+(D.unlisted?" and more":""):D.verdict;
 $("what").textContent=D.what||"";
 const facts=[D.holds_checked.toLocaleString()+" holds",D.faults.length+" faults",
  (D.length/1e6).toFixed(1)+" s","seed "+D.seed,D.class?"class "+D.class:"not ours: no class",
  "T "+(D.recovery_ms?span(D.recovery_ms*1e3):"0"),"lockkeeper "+D.version];
 $("facts").textContent=facts.join(" · ");$("replay").textContent=D.replay;
 const names=$("only"),option=(value,text)=>{const o=document.createElement("option");o.value=value;
  o.textContent=text;names.appendChild(o)};
 option("","all");D.rows.forEach((name,i)=>option(i,name));names.onchange=()=>{
  only=names.value===""?null:+names.value;draw()};
 $("pager").hidden=!D.violations.length;
}

function draw(){
 svg.textContent="";drawn=wide();const W=drawn,L=left(),w=Math.max(W-L-10,50),
  X=t=>L+(t-from)/(to-from)*w,rows=shown(),at=new Map(rows.map((r,i)=>[r,i]));
 const lane=HEAD+rows.length*ROW+GAP,bottom=TOP+D.lanes.length*lane,height=bottom+FOOT+6,
  Y=(l,r)=>TOP+l*lane+HEAD+(at.get(r)||0)*ROW;
 svg.setAttribute("height",height);$("only").value=only===null?"":only;
 const defs=el("defs",{}),hatch=el("pattern",{
  id:"late",width:5,height:5,patternUnits:"userSpaceOnUse",patternTransform:"rotate(45)"},defs);
 el("rect",{width:2.5,height:5,fill:"var(--bad)"},hatch);
 const arrow=el("marker",{id:"tip",viewBox:"0 0 10 10",refX:9,refY:5,markerWidth:7,markerHeight:7,
  orient:"auto"},defs);el("path",{d:"M0 0L10 5L0 10z",fill:"var(--bad)"},arrow);
 el("rect",{x:L,y:0,width:w,height},el("clipPath",{id:"c"},defs));
 const g=el("g",{"clip-path":"url(#c)"}),grid=el("g",{},g),named=[];
 for(const [l,a,b,name] of D.faults){if(b<from||a>to)continue;const x=X(a),ww=Math.max(X(b)-x,2);
  if(l===null)el("rect",{x,y:TOP,width:ww,height:bottom-TOP,fill:"var(--fault)",opacity:.16},g);
  el("rect",{x,y:TOP-12,width:ww,height:7,fill:"var(--fault)",rx:2},g);
  // A label that the right edge would cut off ends there.
  const start=Math.max(Math.min(x,L+w-name.length*5.6-2),L),
   line=[0,1,2].find(r=>(named[r]||0)<=start);
  if(line!==undefined){el("text",{x:start,y:AXIS+10+line*11,class:"small"},g,name);
   named[line]=start+name.length*5.6+6}}
 D.lanes.forEach((name,l)=>{
  const y=TOP+l*lane;el("line",{x1:0,x2:W,y1:y,y2:y,stroke:"var(--line)"});
  el("text",{x:8,y:y+13,class:"name"},svg,cut(name,L<100?10:19));
  for(const r of rows)el("text",{x:L<100?8:20,y:Y(l,r)+13,class:"soft"},svg,row(D.rows[r],L<100
   ?10:18))});
 const over=(all,fill,opacity,min)=>{for(const [l,a,b] of all)if(b>=from&&a<=to)el("rect",
  {x:X(a),y:TOP+l*lane+2,width:Math.max(X(b)-X(a),min),height:lane-3,fill,opacity},g)};
 over(D.pauses,"var(--stop)",.45,1);over(D.deaths,"var(--dead)",.6,2);
 const inView=D.holds.filter(h=>h[4]>=from&&h[2]<=to&&at.has(h[1])),bars=inView.length<=BARS_MAX;
 dense(g,X,Y,rows,bars);waits(g,X,Y,at);
 const behind=el("g",{},g);
 for(const h of inView){const [l,r,asked,a,b,token,mode,dead,end,file,index,events]=h,
  bad=marked.has(key(file,index));if(!bad&&!bars)continue;
  const y=Y(l,r),x0=X(asked),x=X(a),x1=Math.max(X(b),x+.7);
  if(x-x0>1)el("rect",{x:x0,y:y+7,width:x-x0,height:4,fill:"var(--wait)"},behind);
  const e=el("rect",{x,y:y+2,width:x1-x,height:ROW-5,fill:color[mode],rx:x1-x>6?2:0},g);
  if(dead!==null&&b>dead)el("rect",{
   x:X(Math.max(dead,a)),y:y+2,width:Math.max(X(b)-X(Math.max(dead,a)),1),height:ROW-5,
   fill:"url(#late)","pointer-events":"none"},g);
  if(bad)el("rect",{x:x-2,y,width:x1-x+4,height:ROW-1,fill:"none",stroke:"var(--bad)",
   "stroke-width":2,"pointer-events":"none"},g);
  if(x1-x>token.length*6.4+4&&token!=="0")el("text",{x:(Math.max(x,L)+Math.min(x1,W))/2,y:y+12,
   "text-anchor":"middle",class:"small on"},g,token);
  e.addEventListener("click",()=>{
   const token_=token==="0"?"":"  token "+token,deadline=dead===null?"":"   deadline "+time(dead);
   about.textContent=`${D.lanes[l]}  ${D.rows[r]}  ${mode}${token_}\n`
    +`asked ${time(asked)}   got it ${time(a)} (waited ${span(a-asked)})   `
    +`${end} ${time(b)} (held ${span(b-a)})${deadline}   file ${file}\n`
    +events.map(([i,t,what])=>`${i} ${D.words[what]} ${time(t)}`).join(" · ")})}
 for(const v of D.violations){if(v.allowed||v.records.length||v.until<from||v.at>to)continue;
  const r=D.rows.indexOf(v.name),x=X(v.at)-2,ww=Math.max(X(v.until)-x,2)+2;
  const frames=r<0?[[TOP,bottom-TOP]]:at.has(r)?D.lanes.map((_,l)=>[Y(l,r),ROW-1]):[];
  for(const [y,high] of frames)el("rect",{x,y,width:ww,height:high,fill:"none",stroke:"var(--bad)",
   "stroke-width":2,"pointer-events":"none",class:"frame"},g)}
 graphs(g,X,w,bottom,L);
 for(const [t,says] of ticks(Math.max(2,Math.min(8,Math.floor(w/90))))){const x=X(t);
  el("line",{x1:x,x2:x,y1:AXIS-3,y2:bottom+FOOT,stroke:"var(--line)"},grid);
  el("text",{x,y:AXIS-6,"text-anchor":x>L+w-24?"end":x<L+24?"start":"middle",class:"soft"},svg,
  says)}
 if(chosen!==null)story(g,X,Y,at,bottom,L,w);
}

/*
 * Where bars would be too many, or were not kept: the share of the time for which each lane held
 * each name.
 */
function dense(g,X,Y,rows,bars){
 const {width,strips}=D.density,modes=["exclusive","shared","permits"];
 for(const r of rows)D.lanes.forEach((_,l)=>{const strip=strips[l+"/"+r];if(!strip)return;
  const paths=["","",""],n=Math.max(...strip.map(s=>s.length)),last=Math.min(n,Math.ceil(to/width)),
   step=Math.max(1,Math.round(1.5*(to-from)/width/wide()));
  for(let i=Math.max(0,Math.floor(from/width/step)*step);i<last;i+=step){
   const end=Math.min(i+step,n);if(bars&&isExact(i*width,Math.min(end*width,D.length)))continue;
   const x=X(i*width),ww=Math.max(X(end*width)-x,.8);let y=Y(l,r)+ROW-3;
   modes.forEach((_,m)=>{let sum=0;for(let k=i;k<end;k++)sum+=+(strip[m][k]||0);if(!sum)return;
    const h=Math.min(Math.max(sum/(end-i)/9*(ROW-5),1),y-Y(l,r)-2);if(h<=0)return;
    const [px,py,pw,ph,back]=[x,y,ww,-h,-ww].map(v=>v.toFixed(1));
    paths[m]+=`M${px} ${py}h${pw}v${ph}h${back}z`;y-=h})}
  paths.forEach((d,m)=>{
   if(d)el("path",{d,fill:color[modes[m]],opacity:.8,"pointer-events":"none",class:"density"},
   g)})});
}

function waits(g,X,Y,at){let drawn=0;
 for(const [l,r,a,b,end,file,index] of D.waits){if(b<from||a>to||!at.has(r))continue;const y=Y(l,r),
  x=X(a),x1=Math.max(X(b),x+2),bad=marked.has(key(file,index));if(!bad&&x1-x<3)continue;
  if(++drawn>4000)break;
  const e=el("rect",{x,y:y+6,width:x1-x,height:6,fill:"var(--ground)","fill-opacity":.6,stroke:bad
   ?"var(--bad)":"var(--soft)","stroke-dasharray":"3 2"},g);
  e.addEventListener("click",()=>{
   about.textContent=`${D.lanes[l]}  ${D.rows[r]}  waited in vain\n`
    +`asked ${time(a)}   ${end} ${time(b)} (after ${span(b-a)})   `
    +`record ${index} of file ${file}`})}
}

/* Throughput and hand-off, from every hold of the run. */
function graphs(g,X,w,bottom,L){
 const {width,rate,hand}=D.density,step=Math.max(1,Math.ceil((to-from)/width/Math.max(w/3,1))),
  first=Math.max(0,Math.floor(from/width/step)*step),last=Math.min(rate.length,Math.ceil(to/width)),
  columns=[];
 for(let i=first;i<last;i+=step){const end=Math.min(i+step,rate.length),a=i*width,
  b=Math.min(end*width,D.length),us=Math.max(b-a,1);let holds=0;const medians=[];
  for(let k=i;k<end;k++){holds+=rate[k];if(hand[k][0])medians.push(hand[k])}
  medians.sort((p,q)=>p[1]-q[1]);let half=medians.reduce((n,m)=>n+m[0],0)/2,median=null;
   for(const [n,m] of medians){median=m;half-=n;if(half<=0)break}
  columns.push([a,b,holds/us*1e6,median])}
 const half=FOOT/2-14,high=Math.max(...columns.map(c=>c[2]),1e-9),
  slow=Math.max(...columns.map(c=>c[3]||0),1);
 const label=(y,name,most)=>{el("text",{x:8,y},svg,name);el("text",{x:8,y:y+14,class:"soft small"},
  svg,most)};
 label(bottom+26,L<100?"holds/s":"holds a second","to "+Math.round(high).toLocaleString());
  label(bottom+FOOT/2+26,"hand-off",(L<100?"to ":"median, to ")+span(slow));
 for(const [a,b,r,m] of columns){const x=X(a),ww=Math.max(X(b)-x-.5,.5);
  el("rect",{x,y:bottom+14+half*(1-r/high),width:ww,height:half*r/high,fill:"var(--rate)",
   class:"rate"},g);
  if(m!==null)el("rect",{x,y:bottom+FOOT/2+14+half*(1-m/slow),width:ww,height:Math.max(half*m/slow,
   1),fill:"var(--hand)"},g)}
}

/*
 * The steps that lead to a violation: its records, and of a late write the one who got the lock
 * meanwhile.
 */
function steps(v){
 const row=D.rows.indexOf(v.name),own=v.records.filter(r=>r[2]!==null),lane=own.length
  ?own[0][2]:null;
 const all=v.records.map(([file,index,l,at,what])=>({at,lane:l===null
  ?lane:l,says:SAYS[D.words[what]]||D.words[what],key:key(file,index)}));
 if(LATE.has(v.class)&&lane!==null){const since=Math.min(...all.map(s=>s.at));
  const between=D.holds.filter(h=>h[1]===row&&h[0]!==lane&&h[3]>=since&&h[3]<=v.at).pop();
  if(between&&!all.some(s=>s.key===key(between[9],between[10])))all.push({
   at:between[3],lane:between[0],says:"gets it meanwhile"})}
 return all.filter(s=>s.lane!==null).sort((p,q)=>p.at-q.at);
}

function story(g,X,Y,at,bottom,L,w){
 const v=D.violations[chosen],row=D.rows.indexOf(v.name),all=steps(v),x=X(v.at);
 el("line",{x1:x,x2:x,y1:TOP,y2:bottom,stroke:"var(--bad)","stroke-dasharray":"4 3",
  "pointer-events":"none"},g);
 const told=(px,py,text)=>el("text",{x:Math.min(Math.max(px,L+4),L+w-text.length*7.4-4),y:py,
  class:"told","pointer-events":"none"},g,text);
 if(row>=0&&!at.has(row))return;
 if(all.length<2){const y=row<0?TOP+12:Y(0,row)+ROW/2;if(v.until>v.at){
  el("path",{d:`M${x} ${y}H${X(v.until)}`,stroke:"var(--bad)","stroke-width":2,fill:"none",
  "marker-end":"url(#tip)",class:"story"},g);
  told((x+X(v.until))/2-60,y-8,v.class+": "+span(v.until-v.at))}else told(x+6,TOP+12,v.class);
  return}
 const points=all.map(s=>[X(s.at),Y(s.lane,Math.max(row,0))+ROW/2-1]);
 for(let i=1;i<points.length;i++){const [a,b]=points[i-1],[c,d]=points[i],bend=b===d?-26:0;
  el("path",{d:`M${a} ${b}C${(a+c)/2} ${b+bend} ${(a+c)/2} ${d+bend} ${c} ${d}`,stroke:"var(--bad)",
   "stroke-width":2,fill:"none","marker-end":"url(#tip)","pointer-events":"none",class:"story"},g)}
 points.forEach(([px,py],i)=>{
  el("circle",{cx:px,cy:py,r:8,fill:"var(--bad)","pointer-events":"none"},g);
  el("text",{x:px,y:py+4,"text-anchor":"middle",class:"small on"},g,i+1)});
 const [px,py]=points[points.length-1];told(px+12,py-10,v.class);
}

function tell(){const v=D.violations[chosen],all=steps(v);
 about.textContent=`${v.class}: ${v.text}\n`+all.map((s,
  i)=>`${i+1}  ${(s.at/1e6).toFixed(6)} s  ${D.lanes[s.lane]} ${s.says}`).join("\n");
 $("which").textContent=chosen+1+" of "+D.violations.length;
 [...$("list").children].forEach((li,i)=>li.classList.toggle("chosen",i===chosen));
}

function choose(i){chosen=i;const v=D.violations[i],row=D.rows.indexOf(v.name),
 times=[v.at,v.until,...steps(v).map(s=>s.at)];
 only=row<0||D.rows.length===1?null:row;const low=Math.min(...times),high=Math.max(...times),
  pad=Math.max((high-low)*.35,15e3);
 from=Math.max(0,low-pad);to=Math.min(Math.max(D.length,1),high+pad);draw();tell();
}

function zoom(k,t){const length=Math.min(Math.max((to-from)*k,50),Math.max(D.length,1));
 from=Math.max(0,Math.min(t-(t-from)*length/(to-from),D.length-length));to=from+length;draw()}
function move(us){const length=to-from;from=Math.max(0,Math.min(from+us,D.length-length));
 to=from+length;draw()}
function whole(){from=0;to=Math.max(D.length,1);only=null;draw()}

head();
D.violations.forEach((v,i)=>{const li=document.createElement("li");li.className=v.allowed?"ok":"";
 const [what,since]=v.because||["a fault",null],
  expected=v.allowed?`  (expected: ${what}${since===null?"":" at "+(since/1e6).toFixed(3)+" s"})`
   :"";
 li.textContent=`${(v.at/1e6).toFixed(3)} s  ${v.class}: ${v.text}${expected}`;
 li.onclick=()=>{choose(i);scrollTo(0,0)};$("list").appendChild(li)});
$("all").onclick=whole;$("in").onclick=()=>zoom(.5,(from+to)/2);
 $("out").onclick=()=>zoom(2,(from+to)/2);
const turn=by=>choose(chosen===null?0:(chosen+by+D.violations.length)%D.violations.length);
 $("before").onclick=()=>turn(-1);$("after").onclick=()=>turn(1);
const under=x=>{const box=svg.getBoundingClientRect();
 return from+(x-box.left-left())/Math.max(box.width-left()-10,1)*(to-from)};
svg.addEventListener("wheel",e=>{e.preventDefault();zoom(Math.exp(e.deltaY/400),under(e.clientX))},{
 passive:false});
const fingers=new Map();
svg.addEventListener("pointerdown",e=>fingers.set(e.pointerId,e.clientX));
addEventListener("pointermove",e=>{const before=fingers.get(e.pointerId);
 if(before===undefined||e.clientX===before)return;
 const others=[...fingers].filter(([id])=>id!==e.pointerId).map(([,x])=>x);
 fingers.set(e.pointerId,e.clientX);
 if(others.length){
  const other=others[0];zoom(Math.max(Math.abs(before-other),8)/Math.max(Math.abs(e.clientX-other),
  8),under((e.clientX+other)/2))}else move((before-e.clientX)/Math.max(wide()-left()-10,
  1)*(to-from))});
for(const end of ["pointerup","pointercancel"])addEventListener(end,e=>fingers.delete(e.pointerId));
addEventListener("keydown",e=>{if(e.key==="0")whole()});let drawn=0;new ResizeObserver(()=>{
 if(wide()!==drawn)draw()}).observe(svg);
const first=D.violations.findIndex(v=>!v.allowed);
if(first>=0)choose(first);else draw();
if(first<0)$("which").textContent=`${D.violations.length} expected${D.unlisted?" and more":""}`;
